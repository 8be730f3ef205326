"""``slackwater revise`` over topics, tables and lakes of two revisions that have registered in Kafka."""

import json
import uuid
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from slackwater.cli import main
from slackwater.cli.commands import revise
from slackwater.client.lake_views import LakeReaders
from slackwater.client.snapshot import PipelineOutput
from slackwater.client.topic_views import TopicReaders
from slackwater.cuts import PipelineLog
from slackwater.dev import KafkaBroker, PostgresServer
from slackwater.outputs.lake.delta import DeltaLake
from slackwater.protocol import (
    KafkaSettings,
    LakeSettings,
    PipelineReport,
    PostgresSettings,
    RunEnd,
    Servers,
)
from slackwater_lab.fakes.topics import REGISTRATION
from slackwater_lab.publishing import OUTPUT_OF_KIND, published_revisions, registered_pipeline

pytestmark = pytest.mark.integration


@pytest.fixture
def servers(kafka_broker: KafkaBroker, postgres_server: PostgresServer, tmp_path: Path) -> Servers:
    lake = LakeSettings(place=str(tmp_path / "lake"))
    (tmp_path / "slackwater.toml").write_text(
        f'[kafka]\nbootstrap = "{kafka_broker.bootstrap}"\n'
        f'[postgres]\noutput_url = "{postgres_server.dsn()}"\n[delta]\nlocation = "lake"\n'
    )
    url = PostgresSettings(postgres_server.dsn())
    return Servers(KafkaSettings(kafka_broker.bootstrap), postgres=url, delta=lake)


@pytest.mark.parametrize("kind", OUTPUT_OF_KIND)
def test_revisions_are_compared_at_a_commit_that_both_have(
    kind: str, servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["--config", str(tmp_path / "slackwater.toml")]
    with ExitStack() as opened:
        base, old, new = published_revisions(kind, servers, tmp_path, opened)
        ask = [*config, "revise", "compare", base, "--key", "one=id", "--json"]
        old.publish({1: 1, 2: 2, 3: 3})
        new.publish({1: 1, 2: 20, 4: 4})
        capsys.readouterr()
        assert main.run(ask) == 1, capsys.readouterr().err
        found = json.loads(capsys.readouterr().out)["views"]["one"]
        counts = [found[each] for each in ("equal", "different", "only_old", "only_new")]
        assert (found["commit_lsn"], counts, found["columns"]) == (100, [1, 1, 1, 1], {"value": 1})
        old.publish({2: 20, 3: None, 4: 4})
        new.publish({1: 1})
        assert main.run(ask) == 0
        assert json.loads(capsys.readouterr().out)["views"]["one"]["equal"] == 3


def test_readers_of_tables_are_switched_and_told_so(
    servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["--config", str(tmp_path / "slackwater.toml")]
    with ExitStack() as opened:
        base, old, new = published_revisions("postgres", servers, tmp_path, opened)
        switch = [*config, "revise", "switch", base, "--schema", f"readers_{base}", "--timeout", "0", "--to"]
        old.publish({1: 1})
        old.publish({1: 2})
        new.publish({1: 1})
        capsys.readouterr()
        assert main.run([*switch, "1"]) == 0
        assert capsys.readouterr().out == f"readers of schema readers_{base}: {base} at 1/0/C8\n"
        assert main.run([*switch, "2"]) == 3
        assert "readers are at 1/0/C8" in capsys.readouterr().err
        new.publish({1: 2})
        assert main.run([*switch, "2"]) == 0
        told = f"readers of schema readers_{base}: {base}.v2 at 1/0/C8, before {base} at 1/0/C8\n"
        assert capsys.readouterr().out == told


@pytest.mark.full
@pytest.mark.parametrize("kind", ["kafka", "delta"])
def test_readers_of_topics_and_lakes_are_switched_and_read_what_they_were_switched_to(
    kind: str, servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["--config", str(tmp_path / "slackwater.toml")]
    with ExitStack() as opened:
        base, old, new = published_revisions(kind, servers, tmp_path, opened)
        switch = [*config, "revise", "switch", base, "--timeout", "0", "--to"]
        read = [*config, "read", "--pipeline", base, "--kind", kind, "--switched", "--json"]
        old.publish({1: 1})
        old.publish({1: 2})
        new.publish({1: 10})
        capsys.readouterr()
        assert main.run(read) == 1
        assert f"slackwater revise switch {base} --to 1" in capsys.readouterr().err
        assert main.run([*switch, "1"]) == 0
        where = f"readers of the {'topics' if kind == 'kafka' else 'lake tables'} of {base}"
        assert capsys.readouterr().out == f"{where}: {base} at 1/0/C8\n"
        assert main.run([*switch, "2"]) == 3
        assert "readers are at 1/0/C8" in capsys.readouterr().err
        assert main.run([*switch, "3"]) == 1
        assert "has no revision 3; registered: 1, 2" in capsys.readouterr().err
        assert main.run([*switch, "2", "--schema", "s"]) == 2
        capsys.readouterr()
        new.publish({1: 20})
        assert main.run([*switch, "2"]) == 0
        assert capsys.readouterr().out == f"{where}: {base}.v2 at 1/0/C8, before {base} at 1/0/C8\n"
        assert main.run(read) == 0
        ((document,),) = json.loads(capsys.readouterr().out)["views"].values()
        assert document == {"id": 1, "value": 20}
        assert main.run([*config, "revise", "status", base, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["revisions"]
        told = "topics" if kind == "kafka" else "lake"
        assert [(each["pipeline"], each["read_by"]) for each in found] == [(base, []), (f"{base}.v2", [told])]


@pytest.mark.full
@pytest.mark.parametrize("kind", OUTPUT_OF_KIND)
def test_readers_of_two_pipelines_that_become_one_are_switched_and_back(
    kind: str, servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each time, ``status`` and what is opened for readers have only the views of their pipeline."""
    command, base = ["--config", str(tmp_path / "slackwater.toml"), "revise"], f"p{uuid.uuid4().hex[:10]}"
    parts, joint = {f"{base}a": "one", f"{base}b": "two"}, f"{base}.v2"

    def check(name: str, view: str, revision: int) -> None:
        capsys.readouterr()
        assert main.run([*command, "status", name, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["revisions"]
        told = {"kafka": "topics", "delta": "lake"}.get(kind, f"schema readers_{name}")
        read = {each["pipeline"]: each["read_by"] for each in found}
        assert read == {name: [told] * (revision == 1), joint: [told] * (revision == 2)}
        if kind != "postgres":
            with closing(opened_by_readers(kind, servers, name)) as output:
                place = name if revision == 1 else f"{base}_v2"
                assert output.pipeline.replace(".", "_") == place
                assert output.views() == [f"{place}.{view}"]

    with ExitStack() as opened:
        make = partial(registered_pipeline, kind, servers, tmp_path, opened)
        runs = {name: replace(REGISTRATION, pipeline=name, base_name=name) for name in parts}
        of = {name: (view,) for name, view in parts.items()}
        both = replace(REGISTRATION, pipeline=joint, base_name=base, revision=2, revision_of=of)
        pipelines = [*(make(runs[name], view) for name, view in parts.items()), make(both, *parts.values())]
        for revision in (1, 2, 1):
            for each in pipelines:
                each.publish({1: revision})
            for name in parts:
                schema = ["--schema", f"readers_{name}"] if kind == "postgres" else []
                words = ["switch", name, "--timeout", "60", *schema, "--to", str(revision)]
                assert main.run([*command, *words]) == 0, capsys.readouterr().err
            for name, view in parts.items():
                check(name, view, revision)


def opened_by_readers(kind: str, servers: Servers, name: str) -> PipelineOutput:
    if kind == "kafka":
        return TopicReaders(servers.kafka, name).open_current()
    assert servers.delta is not None
    return LakeReaders(DeltaLake(servers.delta), name).open_current()


@pytest.mark.full
@pytest.mark.parametrize("kind", OUTPUT_OF_KIND)
def test_a_revision_that_nobody_reads_is_removed_and_no_other(
    kind: str, servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["--config", str(tmp_path / "slackwater.toml")]
    with ExitStack() as opened:
        base, old, new = published_revisions(kind, servers, tmp_path, opened)
        retire = [*config, "revise", "retire", base, "--keep-for", "0", "--revision"]
        schema = ["--schema", f"readers_{base}"] if kind == "postgres" else []
        switch = [*config, "revise", "switch", base, "--timeout", "60", *schema, "--to"]
        for each in (old, new):
            each.publish({1: 1})
        assert main.run([*switch, "1"]) == 0
        assert main.run([*retire, "1"]) == 1
        assert f"'{base}' is running on host-7" in capsys.readouterr().err
        log = opened.enter_context(closing(PipelineLog(servers.kafka)))
        end = RunEnd(ended_ms=1, failure="")
        for name in (base, f"{base}.v2"):
            values = {"batch_id": 0, "timeline": 1, "commit_lsn": 100, "end": end}
            log.report(PipelineReport(pipeline=name, run=REGISTRATION.run, **values))  # type: ignore[arg-type]
        log.register(replace(REGISTRATION, pipeline=f"other{base}", base_name=f"other{base}", run="o"))
        assert main.run([*retire, "1"]) == 1
        assert f"readers are switched to '{base}'" in capsys.readouterr().err
        assert main.run([*switch, "2"]) == 0
        assert main.run([*retire[:-2], "3600", "--revision", "1"]) == 1
        assert "is kept for 3,600 s" in capsys.readouterr().err
        assert main.run([*retire, "1"]) == 0
        told = capsys.readouterr().out
        assert "nothing was removed" in told
        assert f"the checkpoint {REGISTRATION.checkpoint}" in told
        read = [*config, "read", "--pipeline", base, "--kind", kind]
        assert main.run(read) == 0
        capsys.readouterr()
        assert main.run([*retire, "1", "--yes"]) == 0
        assert f"retired: {base}\n" in capsys.readouterr().out
        assert main.run(read) == (0 if kind == "delta" else 1), "tables of lakes are removed by hand"
        assert main.run([*config, "read", "--pipeline", f"{base}.v2", "--kind", kind]) == 0
        capsys.readouterr()
        assert main.run([*retire, "2", "--yes"]) == 1
        assert "is the only revision of its pipeline" in capsys.readouterr().err
        assert main.run([*config, "pipeline", "delete", f"other{base}"]) == 1, "others stay"


@pytest.mark.full
def test_the_pipelines_of_a_chain_are_switched_one_after_the_other(
    servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["--config", str(tmp_path / "slackwater.toml")]
    with ExitStack() as opened:
        one, *first = published_revisions("kafka", servers, tmp_path, opened)
        two, *second = published_revisions("kafka", servers, tmp_path, opened)
        switch = [*config, "revise", "switch", one, two, "--timeout", "0", "--to"]
        for each in (*first, second[0]):
            each.publish({1: 1})
        assert main.run([*switch, "1"]) == 0
        capsys.readouterr()
        assert main.run([*switch, "2"]) == 3  # the second pipeline has published nothing yet
        assert f"{one}.v2 at 1/0/64" in capsys.readouterr().out
        second[1].publish({1: 1})
        assert main.run([*switch, "2"]) == 0
        assert capsys.readouterr().out == (
            f"readers of the topics of {one}: {one}.v2 at 1/0/64, before {one}.v2 at 1/0/64\n"
            f"readers of the topics of {two}: {two}.v2 at 1/0/64, before {two} at 1/0/64\n"
        )


def test_a_rollout_compares_and_switches_if_nothing_differs_or_somebody_says_yes(
    servers: Servers,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = ["--config", str(tmp_path / "slackwater.toml")]
    with ExitStack() as opened:
        base, old, new = published_revisions("delta", servers, tmp_path, opened)
        monkeypatch.setattr(revise, "follow_catch_up", lambda *_: None)  # there is no source
        rollout = [*config, "revise", "rollout", base, "--to", "2", "--timeout", "0", "--key", "one=id"]
        old.publish({1: 1})
        new.publish({1: 2})
        assert main.run([*config, "revise", "switch", base, "--to", "1"]) == 0
        assert main.run([*config, "revise", "rollout", base, "--to", "3"]) == 1
        assert "has no revision 3" in capsys.readouterr().err
        assert main.run(rollout) == 1
        told = capsys.readouterr()
        assert f"documents of {base}.v2 differ; readers were not switched" in told.err
        assert main.run([*rollout, "--yes"]) == 0
        told = capsys.readouterr()
        assert f"{base}.v2 at 1/0/64, before {base} at 1/0/64" in told.out
        assert f"slackwater revise switch {base} --to 1" in told.out
        assert main.run([*rollout, "--yes"]) == 0  # as after a kill: it finds what is done
