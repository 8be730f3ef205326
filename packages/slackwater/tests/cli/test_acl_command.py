"""What `slackwater acl` prints follows from what is done. Brokers show elsewhere that each line is needed."""

import json
from pathlib import Path

import pytest

from slackwater.cli import main

OWN = ("--user", "u", "--as", "json")


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> "Lines":
    return Lines(capsys)


class Lines:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def of(self, *role: str) -> set[str]:
        """Returns lines such as ``Read topic a``."""
        assert main.run(["acl", *role, *OWN]) == 0
        found = json.loads(self._capsys.readouterr().out)
        return {f"{e['operation']} {e['resource']} {e['name']}{'*' * e['is_prefix']}" for e in found}


def test_rights_in_a_search_cluster_are_told_apart_from_those_in_kafka(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = Path(__file__).parents[4] / "pipelines" / "shop_search"
    assert main.run(["acl", "pipeline", str(folder), *OWN]) == 0
    told = capsys.readouterr()
    assert {each["resource"] for each in json.loads(told.out)} <= {"topic", "group", "transactional-id"}
    page = (folder.parents[1] / "docs" / "search-index.md").read_text()
    rights = told.err.strip().removeprefix("in the search cluster: cluster:monitor/main; on ")
    patterns, _, listed = rights.partition(": ")
    assert "slackwater.shop_search*" in patterns.split(", ")
    assert listed in page


def test_a_member_reads_the_commit_records_of_the_first_output(lines: Lines) -> None:
    member = ("reader", "--topic", "a", "--topic", "b", "--group", "g")
    read = {"Read group g", "Read topic a", "Read topic b"}
    assert lines.of(*member) == read | {"Read topic a.commits"}
    assert lines.of(*member, "--commits", "s.commits") == read | {"Read topic s.commits"}
    more = {"Create topic g.units", "Read topic g.units"}
    assert lines.of(*member, "--by-unit") == read | more | {"Read topic a.commits"}


def test_a_member_that_reads_a_connectors_topics_reads_its_cuts(lines: Lines) -> None:
    found = lines.of("reader", "--source", "inv", "--table", "public.orders", "--group", "g")
    assert found == {"Read group g", "Read topic inv.public.orders", "Read topic inv.slackwater.cuts"}


def test_routed_tables_are_read_where_they_are(lines: Lines, tmp_path: Path) -> None:
    (tmp_path / "slackwater.toml").write_text('[sidecar.topics]\n"public.orders" = "all-orders"\n')
    found = lines.of("reader", "--source", "inv", "--table", "public.orders", "--group", "g")
    assert "Read topic all-orders" in found
    for role in ("sidecar", "viewer", "operator"):
        assert {"Read topic all-orders", "Read topic inv.*"} <= lines.of(role, "--source", "inv")


def test_a_sidecar_that_writes_commit_records_has_the_rights_to(lines: Lines, tmp_path: Path) -> None:
    plain = lines.of("sidecar", "--source", "inv")
    (tmp_path / "slackwater.toml").write_text('[sidecar.of.inv]\ncommit_format = "avro"\n')
    assert lines.of("sidecar", "--source", "inv") - plain == {
        "Create topic inv.commits-avro",
        "Read topic inv.commits-avro",
        "Write topic inv.commits-avro",
        "Write transactional-id slackwater-commits-inv",
    }


def test_who_looks_at_named_tables_reads_no_others(lines: Lines, tmp_path: Path) -> None:
    (tmp_path / "slackwater.toml").write_text('[sidecar]\ntables = ["public.orders"]\n')
    read = {line for line in lines.of("viewer", "--source", "inv") if line.startswith("Read topic inv.")}
    assert read == {
        "Read topic inv.public.orders",
        "Read topic inv.slackwater.cuts",
        "Read topic inv.transaction",
    }


def test_a_reader_of_views_has_only_what_it_does(lines: Lines) -> None:
    views = ("reader", "--topic", "a", "--pipeline", "p.v2")
    read = {"Read topic a", "Read topic a.commits", "Read topic p.v2.slackwater.progress"}
    assert lines.of(*views) == read
    assert lines.of(*views, "--earlier") == read | {"DescribeConfigs topic a"}
    assert lines.of(*views, "--switched", "p") == read | {"Read topic p.slackwater.readers"}
    leases = {f"{each} topic slackwater.leases" for each in ("Create", "Read", "Write")}
    assert lines.of(*views, "--lease") == read | leases


def test_an_operator_who_switches_may_write_which_revision_is_read(lines: Lines) -> None:
    operator = ("operator", "--source", "inv")
    switches = ("--switches", "p", "--pipeline", "p", "--pipeline", "p.v2", "--topic", "a")
    readers = {f"{each} topic p.slackwater.readers" for each in ("Create", "Read", "Write")}
    progress = {"Read topic p.slackwater.progress", "Read topic p.v2.slackwater.progress"}
    more = {"DescribeConfigs topic a", "Read topic a.commits", "Write transactional-id p.slackwater.readers"}
    assert lines.of(*operator, *switches) == lines.of(*operator) | readers | progress | more


@pytest.mark.parametrize(
    ("role", "said"),
    [
        (("reader", "--group", "g"), "nothing that is read was given"),
        (("reader", "--topic", "a"), "neither --group nor --pipeline was given"),
        (("reader", "--topic", "a", "--table", "s.t", "--group", "g"), "only one of --source and --table"),
        (("operator", "--source", "inv", "--switches", "p"), "of switches are not complete"),
        (("sender", "saved", "--topic", "a"), "no --name was given"),
        (("sender", "polling", "--topic", "a", "--pool"), "--pool was given for polling"),
        (("sender", "capture", "--topic", "a", "--name", "n"), "the captured outbox was not given"),
        (
            ("receiver", "--topic", "a", "--group", "g", "--id", "i"),
            "of a processor are not complete",
        ),
        (
            ("receiver", "--topic", "a", "--output", "o", "--id", "i"),
            "of a processor are not complete",
        ),
    ],
)
def test_what_is_missing_is_named(
    role: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["acl", *role, *OWN]) == 2
    assert said in capsys.readouterr().err


def test_a_sender_is_a_user_of_strimzi(capsys: pytest.CaptureFixture[str]) -> None:
    role = ("sender", "chained", "--topic", "paid", "--name", "shop-1", "--user", "shop", "--as", "strimzi")
    assert main.run(["acl", *role]) == 0
    acls = json.loads(capsys.readouterr().out)["spec"]["authorization"]["acls"]
    found = [(each["resource"]["type"], each["resource"]["name"], each["operations"]) for each in acls]
    assert found == [("topic", "paid", ["Write"]), ("transactionalId", "shop-1", ["Write"])]
