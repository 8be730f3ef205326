import json
import multiprocessing
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slackwater.engine.state.store import ArrowStore
from slackwater.pipeline import RunSettings, load_pipeline
from slackwater.pipeline.checkpoint import CHECKPOINT_FILE, Checkpoint, CheckpointIdentity, Fingerprint
from slackwater.pipeline.definition import pipeline_fingerprint
from slackwater.protocol import (
    ConfigError,
    KafkaSettings,
    RedisSettings,
    Servers,
    StateError,
    UnavailableError,
)

ORDERS_PIPELINE = Path(__file__).parents[4] / "pipelines" / "orders"

FACTS = {"column inventory.orders.total": "numeric(12,2) NOT NULL", "output total": "DECIMAL(12,2)"}
VIEW = {"topic": "out", "fingerprint": "abc", "facts": FACTS}
FINGERPRINT = {
    "version": "3",
    "name": "orders",
    "revision": 1,
    "source": "inv",
    "timeline": "1",
    "scope": "strict",
    "emit": "latest",
    "buckets": "64",
    "stages": "s1",
    "views": {"orders": VIEW},
}


def test_a_new_checkpoint_is_claimed_once_and_then_fits(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path / "new"))
    checkpoint.check(FINGERPRINT)
    assert checkpoint.identity() is None
    assert not (tmp_path / "new").exists(), "checking changes nothing"
    claimed = checkpoint.claim(FINGERPRINT)
    assert claimed.buckets == 64
    again = Checkpoint(str(tmp_path / "new"))
    again.check(FINGERPRINT)
    assert again.identity() == claimed == again.claim(FINGERPRINT)


def test_every_checkpoint_has_an_identity_of_its_own(tmp_path: Path) -> None:
    one, other = (Checkpoint(str(tmp_path / name)).claim(FINGERPRINT) for name in "ab")
    assert one.query_id != other.query_id


class Overtaken(ArrowStore):
    """A store in which another run claims the checkpoint just before this one would."""

    def __init__(self, address: str, other: Fingerprint) -> None:
        super().__init__(address)
        self._other = other
        self.claimed: CheckpointIdentity | None = None

    def create(self, name: str, data: bytes) -> bool:
        self.claimed = Checkpoint(self.address).claim(self._other)
        return super().create(name, data)


def overtaken(folder: Path, other: Fingerprint) -> tuple[Checkpoint, Overtaken]:
    checkpoint = Checkpoint(str(folder))
    store = Overtaken(checkpoint.address, other)
    vars(checkpoint)["store"] = store
    return checkpoint, store


def test_of_two_that_claim_a_checkpoint_at_once_the_first_one_names_it(tmp_path: Path) -> None:
    checkpoint, store = overtaken(tmp_path, FINGERPRINT)
    assert checkpoint.claim(FINGERPRINT) == store.claimed == Checkpoint(str(tmp_path)).identity()


def test_of_two_different_pipelines_that_claim_a_checkpoint_at_once_one_is_refused(tmp_path: Path) -> None:
    checkpoint, _ = overtaken(tmp_path, {**FINGERPRINT, "name": "other"})
    with pytest.raises(StateError, match="name was other, is orders"):
        checkpoint.claim(FINGERPRINT)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"version": "3", "na', "unexpected end of data"),
        (b"[]", "expected an object"),
        (b"NaN", "unexpected"),
        (b'{"query_id": "\xff"}', "UTF-8"),
    ],
)
def test_a_damaged_note_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / CHECKPOINT_FILE).write_bytes(content)
    checkpoint = Checkpoint(str(tmp_path))
    for read in (checkpoint.identity, lambda: checkpoint.check(FINGERPRINT)):
        with pytest.raises(StateError, match=says) as caught:
            read()
        assert f"{CHECKPOINT_FILE} in checkpoint {tmp_path}" in str(caught.value)
        assert "restore the checkpoint" in str(caught.value)
    assert (tmp_path / CHECKPOINT_FILE).read_bytes() == content


def test_one_at_a_time_holds_a_checkpoint_and_is_named_to_the_others(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path / "new"))
    with (
        checkpoint.hold("a run of orders"),
        pytest.raises(UnavailableError, match=f"in use by a run of orders .process {os.getpid()}."),
        Checkpoint(str(tmp_path / "new")).hold("another"),
    ):
        pass
    with checkpoint.hold("a run"):
        pass


def test_only_who_holds_a_checkpoint_now_is_named(tmp_path: Path) -> None:
    with Checkpoint(str(tmp_path)).hold("the first run"):
        pass
    with Checkpoint(str(tmp_path)).hold("the second run"):
        with pytest.raises(UnavailableError) as caught, Checkpoint(str(tmp_path)).hold("another"):
            pass
        assert "the first run" not in str(caught.value)


def test_a_note_without_the_run_s_id_is_refused(tmp_path: Path) -> None:
    noted = {"query_id": "q", **FINGERPRINT}
    del noted["query_id"]
    (tmp_path / CHECKPOINT_FILE).write_text(json.dumps(noted))
    with pytest.raises(StateError, match="its id is missing"):
        Checkpoint(str(tmp_path)).claim(FINGERPRINT)


def hold_and_die(folder: Path) -> None:
    """In a process of its own."""
    with Checkpoint(str(folder)).hold("a run"):
        os._exit(1)


def test_a_killed_run_holds_nothing(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=hold_and_die, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 1
    with Checkpoint(str(tmp_path)).hold("another"):
        pass


def test_a_checkpoint_elsewhere_is_not_held() -> None:
    with Checkpoint("s3://bucket/x").hold("a run"), Checkpoint("s3://bucket/x").hold("another"):
        pass


def other_view(**changes: Any) -> dict[str, object]:
    return {"views": {"orders": VIEW | changes}}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"buckets": "32"}, "buckets was 64, is 32"),
        ({"source": "erp"}, "source was inv, is erp"),
        ({"emit": "transactions"}, "emit was latest, is transactions"),
        ({"name": "p"}, "name was orders, is p"),
        ({"timeline": "2"}, "timeline was 1, is 2"),
        ({"scope": "aggregate"}, "scope was strict, is aggregate"),
        ({"stages": "s2"}, "the stages are planned differently by this version"),
        (other_view(topic="other"), "output topic of view orders was out, is other"),
        (other_view(fingerprint="abd"), "view orders has another SQL"),
        ({"views": {"orders": VIEW, "totals": VIEW}}, "view totals is new"),
        ({"views": {"totals": VIEW}}, "view orders is gone; view totals is new"),
        (
            other_view(
                fingerprint="abd", facts={**FACTS, "column inventory.orders.total": "numeric(14,2) NOT NULL"}
            ),
            "view orders has another meaning; "
            "column inventory.orders.total was numeric(12,2) NOT NULL, is numeric(14,2) NOT NULL",
        ),
        (
            other_view(fingerprint="abd", facts={**FACTS, "column inventory.orders.status": "text"}),
            "column inventory.orders.status was no part of it, is text",
        ),
    ],
)
def test_a_changed_pipeline_does_not_fit_and_is_told_what_changed_and_the_way_out(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.claim(FINGERPRINT)
    with pytest.raises(StateError) as caught:
        checkpoint.check(FINGERPRINT | change)
    assert says in str(caught.value)
    assert "set `revision = 2` in pipeline.toml" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - made here


def test_facts_that_change_without_the_meaning_do_not_matter(tmp_path: Path) -> None:
    """For instance when another view of the same stage is what changed them."""
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.claim(FINGERPRINT)
    checkpoint.check({**FINGERPRINT, "views": {"orders": {**VIEW, "facts": {}}}})


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_checkpoint_of_an_earlier_form_is_refused_with_the_way_out(tmp_path: Path, version: str) -> None:
    (tmp_path / CHECKPOINT_FILE).write_text(json.dumps({"version": version, "name": "orders"}))
    checkpoint = Checkpoint(str(tmp_path))
    assert checkpoint.identity() is None
    for refused in (checkpoint.check, checkpoint.claim):
        with pytest.raises(StateError, match=f"the form of the state was {version}, is 3") as caught:
            refused(FINGERPRINT)
        assert "set `revision = 2` in pipeline.toml" in str(caught.value)


def test_the_fingerprint_of_a_pipeline_names_the_columns_its_views_use() -> None:
    definition = replace(load_pipeline(ORDERS_PIPELINE), buckets=8)
    fingerprint = pipeline_fingerprint(definition, 1)
    facts = fingerprint["views"]["orders_with_lines"]["facts"]
    assert facts["column inventory.order_lines.price"] == "numeric(10,2) NOT NULL"
    assert facts["primary key of inventory.orders"] == "id"
    assert facts["output total"] == "DECIMAL(12,2)"
    assert facts["record key"] == "id"


def fingerprint_of(folder: Path) -> Fingerprint:
    return pipeline_fingerprint(replace(load_pipeline(folder), buckets=8), 1)


def test_a_retyped_column_is_named_when_the_old_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    shutil.copytree(ORDERS_PIPELINE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    checkpoint = Checkpoint(str(tmp_path / "checkpoint"))
    checkpoint.claim(fingerprint_of(folder))
    schema = folder / "schema.sql"
    schema.write_text(schema.read_text().replace("numeric(12, 2)", "numeric(14, 2)"))
    with pytest.raises(StateError) as caught:
        checkpoint.check(fingerprint_of(folder))
    said = "column inventory.orders.total was numeric(12,2) NOT NULL, is numeric(14,2) NOT NULL"
    assert said in str(caught.value)


def test_a_column_that_no_view_uses_may_change(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    shutil.copytree(ORDERS_PIPELINE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    checkpoint = Checkpoint(str(tmp_path / "checkpoint"))
    checkpoint.claim(fingerprint_of(folder))
    schema = folder / "schema.sql"
    schema.write_text(
        schema.read_text().replace("customer text NOT NULL,", "customer text NOT NULL, note text,")
    )
    checkpoint.check(fingerprint_of(folder))


def test_the_checkpoint_of_another_spark_query_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text(json.dumps({"id": "q"}))
    with pytest.raises(StateError, match="a Spark query of another kind"):
        Checkpoint(str(tmp_path)).claim(FINGERPRINT)
    assert not (tmp_path / CHECKPOINT_FILE).exists()


@pytest.mark.parametrize(
    ("address", "folder"),
    [
        ("/a/b", "/a/b"),
        ("a", f"{Path.cwd()}/a"),
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("s3://bucket/x", None),
        ("hdfs://host/x", None),
    ],
)
def test_a_checkpoint_on_a_disk_of_this_machine_has_a_folder(address: str, folder: str | None) -> None:
    assert Checkpoint(address).local_folder == (None if folder is None else Path(folder))


def test_a_path_and_its_address_are_one_checkpoint(tmp_path: Path) -> None:
    claimed = Checkpoint(str(tmp_path)).claim(FINGERPRINT)
    for address in (f"file://{tmp_path}", f"file:{tmp_path}", f"{tmp_path}/"):
        assert Checkpoint(address).identity() == claimed


def test_an_address_that_nobody_knows_is_refused_without_its_credentials() -> None:
    with pytest.raises(ConfigError, match="file://, hdfs://, s3:// or gs://") as caught:
        Checkpoint("ftp://ann:hush@host/x").identity()
    assert "hush" not in str(caught.value)


def test_secrets_of_a_run_are_not_shown() -> None:
    settings = RunSettings(
        servers=Servers(KafkaSettings("b:1", {"sasl.password": "hush"}), RedisSettings("redis://r", "hush")),
        checkpoint="c",
    )
    assert "hush" not in repr(settings)
