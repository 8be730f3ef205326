"""What a run keeps of the catalogue between two looks, without a database."""

import threading
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slackwater.cdc.captured import CapturedFinding, Proof, SeenTable
from slackwater.pipeline import source_check
from slackwater.pipeline.checkpoint import Checkpoint
from slackwater.pipeline.definition import pipeline_definition
from slackwater.pipeline.source_check import CatalogueCheck
from slackwater.protocol import InputError
from slackwater.sql.postgres import parse_catalog

LASTING = CapturedFinding(table="s.t", text="it was dropped", hint="begin a new revision")
DISPROVABLE = CapturedFinding(
    table="s.t", text="its values were rewritten", hint="write them again", proof=Proof("s.t", "true", ())
)


class Catalogue:
    """What looks find."""

    def __init__(self) -> None:
        self.found: list[CapturedFinding] = []
        self.compared_with: Mapping[str, SeenTable] = {}
        self.oid = 1
        self.has_looked = threading.Event()

    def examine(
        self, _connection: object, _used: object, before: Mapping[str, SeenTable], **_options: object
    ) -> tuple[dict[str, SeenTable], list[CapturedFinding]]:
        self.compared_with = before
        self.has_looked.set()
        return {"s.t": before.get("s.t") or SeenTable(name="s.t", oid=self.oid)}, self.found


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Catalogue:
    found = Catalogue()
    monkeypatch.setattr(source_check, "examine_tables", found.examine)
    monkeypatch.setattr(source_check, "find_publication", lambda *_: "")

    def connect(*_: Any, **__: Any) -> Any:
        return nullcontext()

    monkeypatch.setattr(psycopg, "connect", connect)
    return found


def check_of(folder: Path, database: str | None = "dbname=d") -> CatalogueCheck:
    definition = pipeline_definition(
        name="p",
        source="inv",
        catalog=parse_catalog({"schema.sql": "CREATE TABLE s.t (id int PRIMARY KEY);"}),
        views={"v": "SELECT TRANSACTIONALLY id FROM s.t"},
    )
    return CatalogueCheck(definition, database, "", Checkpoint(str(folder)))


def test_what_no_later_look_can_disprove_is_kept(looks: Catalogue, tmp_path: Path) -> None:
    looks.found = [DISPROVABLE, LASTING]
    check = check_of(tmp_path)
    assert check.first_look() == (DISPROVABLE, LASTING)
    with pytest.raises(InputError):
        check.check()

    looks.found = []
    again = check_of(tmp_path)
    for _ in range(2):
        assert again.first_look() == (LASTING,)
        with pytest.raises(InputError, match="it was dropped"):
            again.check()


def test_a_copied_state_is_compared_with_what_its_origin_saw(looks: Catalogue, tmp_path: Path) -> None:
    origin = check_of(tmp_path / "1")
    origin.first_look()
    origin.check()

    copy = check_of(tmp_path / "2")
    copy.first_look(Checkpoint(str(tmp_path / "1")))
    assert looks.compared_with == {"s.t": SeenTable(name="s.t", oid=1)}
    copy.check()

    looks.compared_with = {}
    looks.oid = 2
    other = check_of(tmp_path / "other")
    other.first_look()
    other.check()
    check_of(tmp_path / "2").first_look(Checkpoint(str(tmp_path / "other")))
    assert looks.compared_with == {"s.t": SeenTable(name="s.t", oid=1)}, "it has its own by now"
    check_of(tmp_path / "3").first_look()
    assert looks.compared_with == {}


def test_what_is_found_again_is_named_once(looks: Catalogue, tmp_path: Path) -> None:
    looks.found = [LASTING]
    for _ in range(2):
        check = check_of(tmp_path)
        assert check.first_look() == (LASTING,)
        with pytest.raises(InputError):
            check.check()


def test_what_rows_may_disprove_stops_a_run_too(looks: Catalogue, tmp_path: Path) -> None:
    looks.found = [DISPROVABLE]
    check = check_of(tmp_path)
    check.first_look()
    with pytest.raises(InputError, match="its values were rewritten"):
        check.check()


def test_later_looks_are_compared_with_what_was_kept(
    looks: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_check, "CATALOGUE_SECONDS", 0.001)
    check = check_of(tmp_path)
    check.first_look()
    check.check()
    looks.has_looked.clear()
    check.begin()
    assert looks.has_looked.wait(60)
    check.close()
    assert looks.compared_with == {"s.t": SeenTable(name="s.t", oid=1)}


def test_a_database_that_has_none_of_the_tables_is_another_one(looks: Catalogue, tmp_path: Path) -> None:
    looks.oid, looks.found = 0, [LASTING]
    assert not check_of(tmp_path).first_look()


def test_nothing_is_found_without_the_address_of_the_database(looks: Catalogue, tmp_path: Path) -> None:
    looks.found = [LASTING]
    assert not check_of(tmp_path, None).first_look()


def test_a_database_that_had_the_tables_is_believed(
    looks: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = check_of(tmp_path)
    check.first_look()
    check.check()
    monkeypatch.setattr(
        source_check, "examine_tables", lambda *_, **__: ({"s.t": SeenTable(name="s.t")}, [LASTING])
    )
    assert check_of(tmp_path).first_look() == (LASTING,)


def test_a_database_that_does_not_answer_is_reported_once_without_its_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check = check_of(tmp_path, "postgresql://u:secret@h/d")
    for _ in range(2):
        check.warn(psycopg.OperationalError("no answer from postgresql://u:secret@h/d"))
    (record,) = caplog.records
    assert "no answer" in record.getMessage()
    assert "secret" not in record.getMessage()
