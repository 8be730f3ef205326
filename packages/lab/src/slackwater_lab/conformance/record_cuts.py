"""Records the cases about the cut log: the product's own frontier finds the cuts of given topics."""

from collections.abc import Iterator
from typing import Final

import msgspec

from slackwater.protocol import (
    AheadMarkers,
    LogRecord,
    Marker,
    Refusal,
    encode_log_record,
)
from slackwater.protocol.keys import cut_log_topic
from slackwater_lab.conformance.case import Case, End, Expected, Head, Record
from slackwater_lab.debezium.fed_source import FedSource, end, row

SOURCE: Final = "s"
LOG: Final = cut_log_topic(SOURCE)
TOPICS: Final = {"s.inv.a": 2, "s.inv.b": 2, LOG: 1}


class CutCase:
    """The rows that are written to the topics of two tables, and the records of the source's cut log."""

    def __init__(self, name: str, title: str, *requirements: str, refused: bool = False) -> None:
        self._name = name
        self._head = Head(
            title=title,
            requirements=list(requirements),
            commits=LOG,
            topics=TOPICS,
            refused=refused,
            source=SOURCE,
        )
        self._steps: list[Record | End] = []
        self._next: dict[tuple[str, int], int] = {}
        self.expected: list[Expected] = []

    def rows(self, spot: str, *values: bytes, key: int = 1) -> list[tuple[str, int, int]]:
        """Writes rows to a partition, named like ``a/0``; returns their places."""
        table, _, partition = spot.partition("/")
        return [self._write("rows", f"s.inv.{table}", int(partition), value, key) for value in values]

    def log(self, *found: LogRecord | bytes) -> None:
        """Writes records of the cut log."""
        for each in found:
            self._write("cuts", LOG, 0, each if isinstance(each, bytes) else encode_log_record(each), None)

    def expect(self, xid: int, *documents: tuple[str, int, int]) -> None:
        """Says what a reader must find of a transaction."""
        name = f"00000001-{100 * xid + 56:016X}"
        self.expected.append(Expected(id=name, xid=xid, documents=sorted(documents)))

    def case(self) -> Case:
        """Returns the case; each topic is written in one transaction of Kafka."""
        ends = [
            End(
                transaction=transaction,
                committed=True,
                markers={f"{t}/{p}": n for (t, p), n in self._next.items() if (t == LOG) == is_log},
            )
            for transaction, is_log in (("rows", False), ("cuts", True))
        ]
        return Case(self._name, self._head, [*self._steps, *ends], self.expected)

    def _write(
        self, transaction: str, topic: str, partition: int, value: bytes, key: int | None
    ) -> tuple[str, int, int]:
        offset = self._next.get((topic, partition), 0)
        self._next[topic, partition] = offset + 1
        self._steps.append(
            Record(
                transaction=transaction,
                topic=topic,
                partition=partition,
                offset=offset,
                key=msgspec.Raw(b"null" if key is None else b'{"id":%d}' % key),
                value=msgspec.Raw(value),
            )
        )
        return topic, partition, offset


def _three(made: CutCase, fed: FedSource) -> tuple[LogRecord, LogRecord]:
    """Writes transactions 7, 9 and 8, in this order, and rows of 10, which is open; returns the cuts."""

    def written(spot: str, *values: bytes, key: int = 1) -> list[tuple[str, int, int]]:
        fed.row(spot, *values)
        return made.rows(spot, *values, key=key)

    seven = [*written("a/0", row(7, 1)), *written("b/1", row(7, 1, table="b", total=2))]
    fed.tell(end(7, a=1, b=1))
    (first,) = fed.cuts()
    nine = written("a/0", row(9, 1), key=2)
    eight = [*written("a/1", row(8, 1), key=3), *written("b/1", row(8, 1, table="b", total=2), key=3)]
    written("b/0", row(10, 1, table="b"), key=4)
    fed.tell(end(8, a=1, b=1), end(9, a=1))
    (second,) = fed.cuts()
    made.expect(7, *seven)
    made.expect(8, *eight)
    made.expect(9, *nine)
    return first, second


def _plain() -> Case:
    title = "Two cuts, with records of other kinds between them; rows of a transaction that has not ended"
    made = CutCase("cuts", title, "C1", "C2", "C5")
    first, second = _three(made, FedSource())
    ahead = AheadMarkers(
        source=SOURCE,
        timeline=1,
        previous_lsn=756,
        lsn=756,
        transactions=(),
        markers={("s.inv.a", 0): Marker(756, 1)},
    )
    refusal = Refusal(source=SOURCE, timeline=1, since_lsn=0, newest_lsn=756, reason="a setting")
    made.log(first, ahead, refusal, second)
    return made.case()


def _of_two_sidecars() -> Case:
    made = CutCase("cuts-of-two", "Two sidecars have written cuts of different sizes", "C4")
    first, second = _three(made, FedSource())
    other = FedSource()
    _three(CutCase("", ""), other)
    made.log(first, _whole(second), second)
    return made.case()


def _whole(second: LogRecord) -> bytes:
    """Returns the cut of a sidecar that has published nothing before the end of a cut."""
    fields = msgspec.json.decode(encode_log_record(second))
    xids, lsns = fields["xids"], fields["lsns"]
    fields |= {
        "previous": 0,
        "xids": [7, xids[0] - 7, *xids[1:]],
        "lsns": [756, *lsns],
        "times": [0, *fields["times"]],
    }
    return msgspec.json.encode(fields)


def _lost() -> Case:
    made = CutCase("cuts-lost", "A cut is missing in the log", "C4", refused=True)
    _, second = _three(made, FedSource())
    made.log(second)
    made.expected.clear()
    return made.case()


def _repeated() -> Case:
    title = "The connector was restarted, and has written a transaction again, and half of another one"
    made, fed = CutCase("cuts-repeated", title, "C2", "C3"), FedSource()

    def written(spot: str, run: str, *values: bytes, key: int = 1) -> list[tuple[str, int, int]]:
        fed.row(spot, *values, run=run)
        return made.rows(spot, *values, key=key)

    seven = written("a/0", "r1", row(7, 1))
    fed.tell(end(7, a=1))
    (first,) = fed.cuts()
    eight = written("a/1", "r1", row(8, 1), key=2)
    written("a/0", "r2", row(7, 1))
    written("a/1", "r2", row(8, 1), key=2)
    eight += written("b/0", "r2", row(8, 1, table="b", total=2), key=2)
    fed.tell(end(7, a=1), end(8, a=1, b=1))
    made.expect(7, *seven)
    made.expect(8, *eight)
    made.log(first, *fed.cuts())
    return made.case()


def _unknown(name: str, title: str, **fields: object) -> Case:
    made = CutCase(name, title, "C5", refused=True)
    first, second = _three(made, FedSource())
    changed = msgspec.json.decode(encode_log_record(second)) | fields
    made.log(first, msgspec.json.encode(changed))
    del made.expected[1:]
    return made.case()


def record_cut_cases() -> Iterator[Case]:
    """Yields the cases about the cut log."""
    yield _plain()
    yield _of_two_sidecars()
    yield _lost()
    yield _repeated()
    yield _unknown("cuts-larger-version", "A cut has a version that no reader knows yet", v=3)
    yield _unknown("cuts-unknown-kind", "A record has a kind that no reader knows", kind="later")
