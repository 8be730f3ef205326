"""Records the cases again: the product's own sink writes to a real broker, and what it has written is noted.

What no present version writes (an older or a later one, a new timeline in one topic) and what brokers do in
their own time (markers that are late, topics that lose records) is edited into such a recording.
"""

import json
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from slackwater.dev import KafkaBroker
from slackwater.engine.payloads import DocumentBatch, pack_items
from slackwater.kafka.reader import TopicReader
from slackwater.outputs.contract import Emit, SinkStep
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic
from slackwater.outputs.kafka.sink import KafkaSink
from slackwater.protocol import BatchHeader, KafkaSettings, SystemClock, commit_id
from slackwater_lab.conformance.case import CASES, Case, End, Expected, Head, Place, Record
from slackwater_lab.conformance.record_cuts import record_cut_cases
from slackwater_lab.conformance.replay import LOOK_SECONDS, SECONDS
from slackwater_lab.errors import RunFailedError

LSN: Final = 22_270_488
"""0/153D218."""
MANY: Final = 2**53 + 1
"""The smallest number that a float of 64 bits rounds."""
Documents = Mapping[int, Mapping[int, str | None]]
"""By view: the statuses by id; None: it was deleted."""
_COMPACTS_NOW = {
    "min.compaction.lag.ms": "0",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
}


class _Killed(Exception):
    """Ends a run where a crash would."""


class Recording:
    """A pipeline that publishes to a broker, and what it has written so far.

    Args:
        views: The names of its views, each with the number of partitions.
    """

    def __init__(self, bootstrap: str, name: str, emit: Emit, **views: int) -> None:
        self._bootstrap, self._clock = bootstrap, SystemClock()
        self._settings = KafkaSinkSettings(
            pipeline=name,
            outputs=tuple(OutputTopic(f"{name}.{view}", n, view=view) for view, n in views.items()),
            emit=emit,
            kafka=KafkaSettings(bootstrap),
            replication_factor=1,
        )
        outputs = self._settings.outputs
        self.topics = {o.name: o.partitions or 1 for o in outputs} | {o.commits: 1 for o in outputs}
        self._reader = TopicReader({"bootstrap.servers": bootstrap}, SECONDS, is_committed=False)
        self._next: dict[Place, int] = {(t, p): 0 for t, n in self.topics.items() for p in range(n)}
        self._killed = False
        self._sink = self._opened()
        self._batches = 0
        self._lsn = 0
        self.steps: list[Record | End] = []

    def publish(
        self, commits: Mapping[int, Documents], xids: Sequence[int], *, end: int = 0, **options: Any
    ) -> None:
        """Publishes a batch: by commit LSN the documents of each transaction; `end` may be above the last."""
        lsns = list(commits)
        header = BatchHeader(
            source="inv",
            timeline=1,
            from_lsn=self._lsn,
            to_lsn=max(end, *lsns),
            commit_ts_ms=1_767_225_600_000 + self._batches,
            event_count=len(lsns),
            transactions=tuple((x, lsn, 1_767_225_600_000) for x, lsn in zip(xids, lsns, strict=True)),
            **options,
        )
        payloads: dict[int, list[tuple[int, bytes, bytes | None]]] = {}
        for lsn, views in commits.items():
            for view, documents in views.items():
                payloads.setdefault(view, []).extend(_document(lsn, *each) for each in documents.items())
        packed = {view: tuple(pack_items(found)) for view, found in payloads.items()}
        batch = DocumentBatch(self._batches, header, packed, f"state {self._batches}")
        with suppress(_Killed):
            self._sink.write("q", batch)
        if self._killed:
            self._sink.close()
            self._note(f"batch {self._batches + 1}, killed", committed=False)
            self._killed, self._sink = False, self._opened()
            return
        self._batches, self._lsn = self._batches + 1, header.to_lsn
        self._note(f"batch {self._batches}", committed=True)

    def kill_next(self) -> None:
        """The next batch dies before its commit, with all of its records in Kafka."""
        self._killed = True

    def compact(self) -> None:
        """Has the broker compact the outputs, and forgets what was removed."""
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        for output in self._settings.outputs:
            entries = [
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                for name, value in _COMPACTS_NOW.items()
            ]
            resource = ConfigResource(ResourceType.TOPIC, output.name, incremental_configs=entries)
            for done in admin.incremental_alter_configs([resource]).values():
                done.result(SECONDS)

    def forget_removed(self, wanted: int) -> None:
        """Waits until compaction has left this many records in the outputs."""
        places = [place for place in self._next if not place[0].endswith(".commits")]
        deadline = self._clock.monotonic() + SECONDS
        while len(left := {_place_of(m) for m in self._read(dict.fromkeys(places, 0))}) > wanted:
            if self._clock.monotonic() > deadline:
                raise RunFailedError("compaction", f"has left {len(left)} records, expected {wanted}")
        self.steps = [
            each
            for each in self.steps
            if isinstance(each, End)
            or each.topic.endswith(".commits")
            or (each.topic, each.partition, each.offset) in left
        ]

    def case(self, title: str, *requirements: str, **options: Any) -> Case:
        """Returns the case as it was recorded, with the transactions that the commit records name."""
        commits = self._settings.outputs[0].commits
        options = {"title": title, "requirements": list(requirements)} | options
        head = Head(commits=commits, topics=self.topics, **options)
        return with_expected(Case(self._settings.pipeline, head, self.steps, []))

    def close(self) -> None:
        """Ends the pipeline."""
        self._sink.close()
        self._reader.close()

    def _opened(self) -> KafkaSink:
        sink = KafkaSink(self._settings, probe=self._die)
        sink.open()
        return sink

    def _die(self, step: SinkStep, _: int) -> None:
        if self._killed and step is SinkStep.PROGRESS:
            logs = [place for place in self._next if place[0].endswith(".commits")]
            self._await(lambda: all(self._reader.bounds(place)[1] > self._next[place] for place in logs))
            raise _Killed

    def _note(self, transaction: str, *, committed: bool) -> None:
        """Notes the records of a transaction that has ended, and its markers."""
        places = list(self._next)
        self._await(
            lambda: (
                self._reader.ends(places, is_committed=True) == self._reader.ends(places, is_committed=False)
            )
        )
        found = [_record(transaction, message) for message in self._read(self._next)]
        touched = sorted({(each.topic, each.partition) for each in found})
        ends = self._reader.ends(places, is_committed=False)
        self.steps += found
        markers = {f"{topic}/{partition}": ends[topic, partition] - 1 for topic, partition in touched}
        self.steps.append(End(transaction=transaction, committed=committed, markers=markers))
        self._next = ends

    def _read(self, starts: Mapping[Place, int]) -> Iterator[Message]:
        ends = self._reader.ends(list(starts), is_committed=False)
        return self._reader.read({place: (start, ends[place]) for place, start in starts.items()})

    def _await(self, is_so: Callable[[], bool]) -> None:
        deadline = self._clock.monotonic() + SECONDS
        while not is_so():
            if self._clock.monotonic() > deadline:
                raise RunFailedError("the broker", "has not written the markers of a transaction")
            threading.Event().wait(LOOK_SECONDS)


def with_expected(case: Case) -> Case:
    """Returns the case with the transactions that the visible records of its commit topic name."""
    committed = {each.transaction for each in case.steps if isinstance(each, End) and each.committed}
    records = [each for each in case.steps if isinstance(each, Record) and each.transaction in committed]
    places = [(each.topic, each.partition, each.offset) for each in records]
    expected = []
    for record in records:
        first = max(case.head.start or 0, case.head.deleted.get(f"{record.topic}/0", 0))
        if record.topic != case.head.commits or record.offset < first:
            continue
        fields = json.loads(bytes(record.value))
        ranges = {(t, int(p)): held for t, each in fields["offsets"].items() for p, held in each.items()}
        documents = [p for p in places if (held := ranges.get(p[:2])) and held[1] <= p[2] <= held[2]]
        name = commit_id(fields["timeline"], fields["commit_lsn"])
        skipped = fields.get("skipped", [])
        expected.append(Expected(id=name, xid=fields["xid"], skipped=skipped, documents=sorted(documents)))
    return Case(case.name, case.head, case.steps, expected)


def _document(lsn: int, key: int, status: str | None) -> tuple[int, bytes, bytes | None]:
    document = None if status is None else f'{{"id":{key},"status":"{status}"}}'.encode()
    return lsn, f'{{"id":{key}}}'.encode(), document


def _record(transaction: str, message: Message) -> Record:
    topic, partition, offset = _place_of(message)
    given = cast("list[tuple[str, bytes]]", message.headers() or [])
    headers = {name: text.decode() for name, text in given}
    key, value = (msgspec.Raw(each or b"null") for each in (message.key(), message.value()))
    return Record(
        transaction=transaction,
        topic=topic,
        partition=partition,
        offset=offset,
        key=key,
        headers=headers,
        value=value,
    )


def _place_of(message: Message) -> tuple[str, int, int]:
    return message.topic() or "", message.partition() or 0, message.offset() or 0


# --- the cases


def record_cases(bootstrap: str) -> Iterator[Case]:
    """Yields every case, recorded again from a broker that was started for this."""
    with ExitStack() as opened:

        def recording(name: str, emit: Emit = Emit.TRANSACTIONS, **views: int) -> Recording:
            made = Recording(bootstrap, name, emit, **(views or {"orders": 1}))
            opened.callback(made.close)
            return made

        yield _transactions(recording("transactions", orders=2, totals=1))
        yield _aborted(recording("aborted"))
        yield _compacted(recording("compacted", Emit.LATEST))
        yield _skipped(recording("skipped"))
        plain = {name: _two_batches(recording(name)) for name in _EDITED}
        for name, (edit, title, requirements) in _EDITED.items():
            yield edit(plain[name].case(title, *requirements))
    yield from record_cut_cases()


def _transactions(made: Recording) -> Case:
    made.publish({LSN: {0: {1: "new", 2: "new", 3: "new"}, 1: {1: "3"}}}, [0])
    changes: dict[int, Documents] = {LSN + 40: {0: {1: "paid", 4: "new"}, 1: {1: "4"}}, LSN + 80: {}}
    made.publish({**changes, LSN + 120: {0: {1: "sent", 2: None}}}, [801, 802, 803], end=LSN + 160)
    made.publish({LSN + 200: {0: {3: "paid"}}}, [804])
    title = "Several topics and partitions; a snapshot, an empty transaction, a record without xid"
    return made.case(title, "R2", "R3", "R4", "R7", "R8")


def _aborted(made: Recording) -> Case:
    made.publish({LSN: {0: {1: "new"}}}, [801])
    made.kill_next()
    made.publish({LSN + 40: {0: {1: "paid", 2: "new"}}}, [802])
    made.publish({LSN + 40: {0: {1: "paid", 2: "new"}}}, [802])
    return made.case("A run was killed before it committed: its documents and its record stay", "R1", "R4")


def _compacted(made: Recording) -> Case:
    made.publish({LSN: {0: {1: "new", 2: "new", 3: "new"}}}, [801])
    made.publish({LSN + 40: {0: {1: "paid", 3: "paid"}}}, [802])
    made.compact()
    made.publish({LSN + 80: {0: {2: "paid"}}}, [803])
    made.publish({LSN + 120: {0: {3: "sent"}}}, [804])
    made.publish({LSN + 160: {0: {4: "new"}}}, [805])
    made.forget_removed(4)
    return made.case('Compaction has removed what later batches replaced (emit = "latest")', "R4", "R6")


def _skipped(made: Recording) -> Case:
    made.publish({LSN: {0: {1: "new"}}}, [801])
    made.publish({LSN + 40: {0: {2: "new"}}}, [802], skipped=(802,))
    return made.case("An operator has released a transaction although rows were missing", "R11")


def _two_batches(made: Recording) -> Recording:
    made.publish({MANY: {0: {1: "new", 2: "new"}}}, [801])
    made.publish({MANY + 40: {0: {1: "paid"}}, MANY + 80: {0: {2: "paid"}}}, [802, 803])
    return made


def _edited(case: Case, changes: Mapping[int, Mapping[str, Any]], **head: Any) -> Case:
    """Returns a case with other fields in commit records, by number; what becomes `...` is removed."""
    steps, number = [], -1
    for each in case.steps:
        if isinstance(each, Record) and each.topic == case.head.commits:
            number += 1
            fields = json.loads(bytes(each.value)) | changes.get(number, {})
            kept = {name: value for name, value in fields.items() if value is not ...}
            each = msgspec.structs.replace(each, value=msgspec.Raw(msgspec.json.encode(kept)))
        steps.append(each)
    return with_expected(Case(case.name, msgspec.structs.replace(case.head, **head), steps, []))


def _new_timeline(case: Case) -> Case:
    def on_second(lsn: int, previous: int) -> dict[str, Any]:
        return {"timeline": 2, "commit_lsn": lsn, "previous_lsn": previous, "id": commit_id(2, lsn)}

    return _edited(case, {1: on_second(LSN, 0), 2: on_second(LSN + 40, LSN)})


def _later_fields(case: Case) -> Case:
    added = {"later": {"a": [1, 2.5e-3, None, True, '"\\\u00e9\n']}, "offset": "no"}
    return _edited(case, dict.fromkeys(range(3), added))


def _first_version(case: Case) -> Case:
    names = ("id", "commit_ts_ns", "record_count", "record_counts", "schemas", "skipped")
    return _edited(case, {number: {"v": 1} | dict.fromkeys(names, ...) for number in range(3)})


def _larger_version(case: Case) -> Case:
    found = _edited(case, {2: {"v": 3}}, refused=True)
    return Case(case.name, found.head, found.steps, found.expected[:2])


def _unannounced(case: Case) -> Case:
    """Without the records of the second batch, as if their marker were on its way to another broker."""
    log = case.head.commits
    steps: list[Record | End] = []
    for each in case.steps:
        if isinstance(each, End):
            is_second = each.transaction == "batch 2"
            kept = {name: at for name, at in each.markers.items() if not (is_second and name == f"{log}/0")}
            steps.append(msgspec.structs.replace(each, markers=kept))
        elif not (each.topic == log and each.transaction == "batch 2"):
            steps.append(each)
    return with_expected(Case(case.name, case.head, steps, []))


def _late_marker(case: Case) -> Case:
    """The second batch's marker reaches the commit topic first, as from a broker to another one."""
    log = case.head.commits
    steps: list[Record | End] = []
    for each in case.steps:
        if each.transaction != "batch 2":
            steps.append(each)
        elif isinstance(each, Record):
            name = "batch 2, commit records" if each.topic == log else each.transaction
            steps.append(msgspec.structs.replace(each, transaction=name))
        else:
            marker = {f"{log}/0": each.markers[f"{log}/0"]}
            others = {name: at for name, at in each.markers.items() if name not in marker}
            steps.append(End(transaction="batch 2, commit records", committed=True, markers=marker))
            steps.append(msgspec.structs.replace(each, markers=others))
    head = msgspec.structs.replace(case.head, held="batch 2")
    return with_expected(Case(case.name, head, steps, []))


def _begun(case: Case, start: int | None, *, deleted: Iterable[tuple[str, int]] = (), refused: bool) -> Case:
    """Returns a case that begins at an offset, and has lost records."""
    found = _edited(case, {}, start=start, deleted=dict(deleted), refused=refused)
    return Case(case.name, found.head, found.steps, [] if refused else found.expected)


def _lost(case: Case) -> list[tuple[str, int]]:
    return [(f"{case.head.commits}/0", 2)]


def _without_documents(case: Case) -> Case:
    documents = case.head.commits.removesuffix(".commits")
    return _begun(case, None, deleted=[(f"{documents}/0", 1)], refused=True)


_EDITED: Final[Mapping[str, tuple[Callable[[Case], Case], str, tuple[str, ...]]]] = {
    "new-timeline": (_new_timeline, "LSNs have started over on a new timeline", ("R2",)),
    "unknown-fields": (_later_fields, "Records have fields that a later version has added", ("R9",)),
    "version-1": (_first_version, "Records of version 1, with LSNs that a float rounds", ("R9", "R14")),
    "larger-version": (_larger_version, "A record has a version that no reader knows yet", ("R10",)),
    "unannounced": (_unannounced, "Documents are visible before the record that names them", ("R3",)),
    "late-marker": (_late_marker, "The commit record is visible before its documents are", ("R5",)),
    "continued": (lambda c: _begun(c, 2, refused=False), "A reader continues at its position", ("R12",)),
    "lost-position": (
        lambda c: _begun(c, 0, deleted=_lost(c), refused=True),
        "The commit topic has lost the records at the reader's position",
        ("R12",),
    ),
    "recreated": (
        lambda c: _begun(c, 1000, refused=True),
        "The commit topic ends before the reader's position: it was recreated",
        ("R12",),
    ),
    "truncated": (
        lambda c: _begun(c, None, deleted=_lost(c), refused=False),
        "A reader without a position begins with the oldest record that is left",
        ("R12",),
    ),
    "lost-documents": (_without_documents, "Documents that a record names were deleted", ("R13",)),
}


def record_all(into: Path = CASES) -> list[str]:
    """Records every case into a folder of files, with a broker that compacts at once; returns their names."""
    names = []
    with tempfile.TemporaryDirectory(prefix="slackwater-conformance-") as folder:
        broker = KafkaBroker(Path(folder), overrides={"log.cleaner.backoff.ms": "200"})
        broker.start()
        try:
            for case in record_cases(broker.bootstrap):
                (into / f"{case.name}.jsonl").write_text("\n".join(case.lines()) + "\n", "utf-8")
                names.append(case.name)
        finally:
            broker.stop()
    return names
