"""A case: topics as they were recorded, in lines of JSON that people can read, and what a reader must print.

The first line of a file describes the case. Then come records and ends of Kafka transactions in the order in
which they were written, and at the end the expected transactions.
"""

from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

CASES = Path(str(resources.files("slackwater_lab.conformance"))) / "cases"
Place = tuple[str, int]
"""Topic and partition."""


class Head(msgspec.Struct, tag="case", tag_field="line", omit_defaults=True, kw_only=True):
    """What a case is about, and how its reader is started."""

    title: str
    requirements: list[str]
    """Those of the specification that a reader would violate if it failed here."""
    commits: str
    """The commit topic, or the cut log, that the reader is given."""
    topics: dict[str, int]
    """All topics with the number of their partitions."""
    start: int | None = None
    """The offset of the commit topic at which the reader is to begin; None: it is not told one."""
    deleted: dict[str, int] = {}
    """By ``<topic>/<partition>``: the offset below which records were deleted."""
    held: str = ""
    """The transaction that ends only after the reader has read everything that it can see."""
    source: str = ""
    """The source that the records of a cut log name."""
    refused: bool = False
    """Whether the reader must refuse to continue, after the expected transactions at the latest."""


class Record(msgspec.Struct, tag="record", tag_field="line", omit_defaults=True, kw_only=True):
    """A record. Keys and values are JSON, byte for byte; null is none."""

    transaction: str
    topic: str
    partition: int
    offset: int
    key: msgspec.Raw = msgspec.Raw(b"null")
    headers: dict[str, str] = {}
    value: msgspec.Raw = msgspec.Raw(b"null")


class End(msgspec.Struct, tag="end", tag_field="line", kw_only=True):
    """The end of a transaction, with the offset of the marker in each of its partitions."""

    transaction: str
    committed: bool
    markers: dict[str, int]


class Expected(msgspec.Struct, tag="expected", tag_field="line", kw_only=True):
    """What a reader must print for a commit record; documents are those at places of the topics."""

    id: str
    xid: int | None
    skipped: list[int] = []
    documents: list[tuple[str, int, int]]


Line = Head | Record | End | Expected
_DECODER = msgspec.json.Decoder(Line)


class Case(msgspec.Struct, frozen=True):
    """A case with its name, which is that of its file."""

    name: str
    head: Head
    steps: list[Record | End]
    expected: list[Expected]

    def documents(self, found: Expected) -> list[list[Any]]:
        """Returns the documents of a transaction as a reader prints them."""
        by_place = {(r.topic, r.partition, r.offset): r for r in self.steps if isinstance(r, Record)}
        records = [by_place[place] for place in found.documents]
        return [[r.topic, r.partition, r.offset, text_of(r.key), text_of(r.value)] for r in records]

    def renamed(self, prefix: str) -> "Case":
        """Returns the case with other topics: a prefix is put before every name, in commit records too."""
        lines = "\n".join(self.lines())
        for topic in sorted(self.head.topics, key=len, reverse=True):
            lines = lines.replace(f'"{topic}', f'"{prefix}{topic}')
        if self.head.source:
            lines = lines.replace(f'"source":"{self.head.source}"', f'"source":"{prefix}{self.head.source}"')
        return parse(self.name, lines)

    def lines(self) -> list[str]:
        """Returns the lines of the file."""
        return [msgspec.json.encode(each).decode() for each in (self.head, *self.steps, *self.expected)]


def text_of(raw: msgspec.Raw) -> str | None:
    """Returns a key or a value as text; None if there is none."""
    return None if bytes(raw) == b"null" else bytes(raw).decode()


def parse(name: str, text: str) -> Case:
    """Reads the lines of a case."""
    head, *others = [_DECODER.decode(line) for line in text.splitlines()]
    assert isinstance(head, Head)  # noqa: S101 - the first line of a file of ours
    steps = [each for each in others if isinstance(each, Record | End)]
    return Case(name, head, steps, [each for each in others if isinstance(each, Expected)])


def load_cases(names: Iterable[str] = (), folder: Path = CASES) -> Mapping[str, Case]:
    """Reads cases by name; all of them if none is named."""
    wanted = list(names) or sorted(path.stem for path in folder.glob("*.jsonl"))
    return {name: parse(name, (folder / f"{name}.jsonl").read_text("utf-8")) for name in wanted}


def cases_about(*, cuts: bool) -> Mapping[str, Case]:
    """Reads the cases about the cut log, or those about commit topics."""
    return {name: case for name, case in load_cases().items() if bool(case.head.source) == cuts}
