"""Texts are plain English: code, comments, messages, help and pages contain none of the listed words."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("plain_english.toml")
RULES = tomllib.loads(LIST.read_text())
WORDS = {re.compile(pattern): advice for pattern, advice in RULES["words"].items()}
ANY = re.compile(rf"\b(?:{'|'.join(RULES['words'])})")
SUFFIXES = {".py", ".md", ".toml", ".html", ".js", ".css", ".sql", ".yaml", ".sh", ""}


def texts() -> Iterator[Path]:
    """Yields all texts of the repository that are written by people, without this test."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for path in (ROOT / name for name in names if name):
        if (
            path.suffix in SUFFIXES
            and path.is_file()
            and path.stem not in {LIST.stem, Path(__file__).stem, "LICENSE"}
        ):
            yield path


def stilted(text: str) -> Iterator[str]:
    """Yields the number of each line with a listed word, the word, and what to write instead."""
    text = text.lower()
    for found in ANY.finditer(text):
        advice = next(advice for pattern, advice in WORDS.items() if pattern.match(text, found.start()))
        yield f"{text.count(chr(10), 0, found.start()) + 1}: {found[0]!r}: write {advice}"


def test_texts_contain_no_stilted_words() -> None:
    found = [
        (str(path.relative_to(ROOT)), each)
        for path in texts()
        for each in stilted(path.read_text(errors="ignore"))
    ]
    assert found == []


def test_words_are_recognised() -> None:
    for sentence in (
        "Whoever reads it", "It is made anew.", "It waited in vain.", "The run goes on.", "Where it stands",
        "So long is it looked at", "who asks", "a source is told of it", "thereby",
    ):  # fmt: skip
        assert list(stilted(sentence)), sentence
    for sentence in ("t stands for a table", "so long that it is cut", "a stand-in", "the outstanding ones"):
        assert not list(stilted(sentence)), sentence
