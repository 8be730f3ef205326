"""``slackwater check``: every mistake with its place, for people and for editors."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from slackwater.cli import main

FILES = {
    "pipeline.toml": 'name = "p"\nsource = "s"\n[outputs.totals]\nkind = "postgres"\n',
    "schema.sql": "CREATE TABLE items (id bigint PRIMARY KEY, kind text, price numeric(10, 2));",
    "views/rows.sql": "SELECT TRANSACTIONALLY id, kind, price FROM items",
    "views/totals.sql": "SELECT TRANSACTIONALLY kind, sum(price) AS worth FROM items GROUP BY kind",
}


def folder_of(path: Path, changed: Mapping[str, str]) -> Path:
    for name, text in {**FILES, **changed}.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return path


def places(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[tuple[str, int, int, str]]]:
    code = main.run(["check", str(folder), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert all(set(each) == {"path", "line", "column", "text", "problem", "hint"} for each in found)
    relative = (str(Path(each["path"]).relative_to(folder)) for each in found)
    return code, [
        (path, each["line"], each["column"], each["text"]) for path, each in zip(relative, found, strict=True)
    ]


def test_a_right_pipeline_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, {})

    assert main.run(["check", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}: no mistakes\n"
    assert places(folder, capsys) == (0, [])


def test_those_of_all_views_are_found_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(
        tmp_path,
        {
            "views/rows.sql": "SELECT TRANSACTIONALLY id,\n  knd, prize FROM items",
            "views/totals.sql": "SELECT TRANSACTIONALLY kind, sum(price) AS worth FROM itms GROUP BY kind",
        },
    )

    assert places(folder, capsys) == (
        1,
        [
            ("views/rows.sql", 2, 3, "knd"),
            ("views/rows.sql", 2, 8, "prize"),
            ("views/totals.sql", 1, 55, "itms"),
        ],
    )
    assert main.run(["check", str(folder)]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_those_of_views_are_found_beside_one_in_the_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = {"pipeline.toml": 'name = "p"\nsource = "s"\nemits = 1\n', "views/rows.sql": "SELECT 1"}
    folder = folder_of(tmp_path, changed)

    code, found = places(folder, capsys)

    assert code == 1
    assert [path for path, *_ in found] == ["pipeline.toml", "views/rows.sql"]


def test_those_of_all_declarations_are_found_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = "CREATE TABLE a (id);\nCREATE TABLE b (id bigint PRIMARY KEY);\nDROP TABLE b;\n"
    folder = folder_of(tmp_path, {"schema.sql": schema})

    assert [(path, line) for path, line, *_ in places(folder, capsys)[1]] == [
        ("schema.sql", 1),
        ("schema.sql", 3),
    ]


def test_a_table_of_a_view_with_a_key_that_is_not_selected_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "SELECT TRANSACTIONALLY coalesce(i.id, o.id) AS id FROM items i FULL JOIN items o ON i.id = o.id"
    folder = folder_of(tmp_path, {"views/totals.sql": text})

    assert main.run(["check", str(folder)]) == 1
    assert "GROUP BY coalesce" in capsys.readouterr().out


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["check", str(tmp_path / "nowhere")]) == 1
    assert "nowhere is not a folder" in capsys.readouterr().err


def test_with_watch_files_are_checked_again_when_they_change(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {})
    command = [sys.executable, "-m", "slackwater", "check", str(folder), "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline()) == []
            (folder / "views" / "rows.sql").write_text("SELECT TRANSACTIONALLY idd FROM items")
            assert [each["text"] for each in json.loads(process.stdout.readline())] == ["idd"]
            (folder / "views" / "rows.sql").write_text(FILES["views/rows.sql"])
            assert json.loads(process.stdout.readline()) == []
        finally:
            process.terminate()
