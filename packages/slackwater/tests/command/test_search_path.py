"""Printed commands can be typed where they are printed."""

import sys
from pathlib import Path

import pytest

from slackwater.command.invocation import search_path_lines


def test_a_shell_that_does_not_find_the_program_is_told_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "slackwater").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))

    (line,) = search_path_lines({"PATH": "/nowhere"})

    assert line.endswith(f"export PATH='{folder}':\"$PATH\"")
    assert list(search_path_lines({"PATH": str(folder)})) == []
