"""Fills topics with what a connector would have written for a workload, in processes that share them out."""

import gc
import multiprocessing
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.connection import Connection

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater.protocol import Clock, SystemClock
from slackwater.protocol.keys import notification_topic
from slackwater_lab.debezium.records import snapshot_notifications
from slackwater_lab.errors import RunFailedError
from slackwater_lab.generator.debezium_records import ConnectorIdentity, Headers
from slackwater_lab.generator.share import TRANSACTIONS, Share
from slackwater_lab.workloads.workload import NO_CHANGES, Workload

_PROCESSES = 2
_PROCESS = "a process of the generator"
_SAMPLE = 2_000
"""The number of transactions that show how busy each topic will be."""
_STEP = 2_000
"""Change events between two looks at the clock while a partition is held back."""
_FLUSH_SECONDS = 120.0
_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class HoldBack:
    """One partition whose records arrive late while all others continue."""

    topic: str
    partition: int
    seconds: float
    """After the beginning of the call that writes them."""


@dataclass(frozen=True, slots=True)
class Filled:
    """The size of what one call wrote."""

    events: int
    transactions: int
    last_commit_lsn: int


@dataclass(frozen=True, slots=True)
class _Task:
    """The order to a process of the generator."""

    bootstrap: str
    workload: Workload
    connector: ConnectorIdentity
    partitions: int
    topics: Collection[str]


class TopicFiller:
    """Simulates the database and writes its topics; continues where the last call ended. A context manager.

    The topics are shared out among processes; each simulates everything and renders its topics, so what is
    written does not depend on their number.

    Args:
        bootstrap: The broker. The topics are created and must not exist.
        workload: What happens in the database; must be picklable.
        prefix: The connector's ``topic.prefix``.
        partitions: Of each data topic.
        processes: How many render.
    """

    def __init__(
        self, bootstrap: str, workload: Workload, *, prefix: str, partitions: int, processes: int = _PROCESSES
    ) -> None:
        connector = ConnectorIdentity(prefix)
        names = [*workload.tables, TRANSACTIONS]
        _create_topics(bootstrap, [f"{prefix}.{name}" for name in names], partitions)
        announce_empty_tables(bootstrap, prefix, workload.tables)
        context = multiprocessing.get_context("spawn")
        self._processes: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
        settings = _Task(bootstrap, workload, connector, partitions, frozenset())
        for topics in _shared_out(workload, names, processes):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, replace(settings, topics=topics)), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append((process, ours))

    def __enter__(self) -> "TopicFiller":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fill(self, events: int, *, hold_back: HoldBack | None = None) -> Filled:
        """Writes whole transactions with at least ``events`` change events; returns when Kafka has them.

        The first call writes the workload's first transactions before that, whatever their number.

        Args:
            events: How many at least.
            hold_back: A partition whose records of this call arrive late, however long the others take.

        Raises:
            RunFailedError: a process failed; the message has its error.
        """
        for _, connection in self._processes:
            connection.send((events, hold_back))
        answers = [_receive(process, connection) for process, connection in self._processes]
        return answers[0]

    def close(self) -> None:
        """Ends the processes; idempotent."""
        for process, connection in self._processes:
            connection.close()
            process.join()
        self._processes = []


class TopicOutput:
    """Produces records; used by one thread."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._error: KafkaError | None = None
        self._held: list[tuple[str, str | None, str, Headers]] = []
        self._hold: HoldBack | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "compression.type": "lz4",
                "linger.ms": 50,
                "batch.size": 1_000_000,
                "queue.buffering.max.messages": 500_000,
                "error_cb": self._note,
                "delivery.report.only.error": True,
                "on_delivery": self._note_delivery,
            }
        )

    def put(self, topic: str, value: str | None, key: str, headers: Headers) -> None:
        """Takes one record."""
        if self._hold is not None and self._is_held(topic, key):
            self._held.append((topic, value, key, headers))
            return
        try:
            self._producer.produce(topic, value, key, headers=headers)
        except BufferError:
            self._producer.poll(0.2)
            self.put(topic, value, key, headers)

    def hold(self, hold: HoldBack | None) -> None:
        """Keeps one partition's records back from now on; None: lets those go that were kept."""
        self._hold = hold
        if hold is None:
            held, self._held = self._held, []
            for record in held:
                self.put(*record)

    def flush(self, seconds: float = _FLUSH_SECONDS) -> None:
        """Waits until the broker has all records but those held back.

        Raises:
            RunFailedError: it does not get them.
        """
        left = self._producer.flush(seconds)
        if self._error is not None:
            raise self._not_taken(self._error.str())
        if left:
            raise self._not_taken(f"{left} records are left after {seconds:g} s")

    def _not_taken(self, reason: str) -> RunFailedError:
        what = f"Kafka at {self._bootstrap} did not take all records"
        return RunFailedError(what, f"{reason}; is it running?")

    def _is_held(self, topic: str, key: str) -> bool:
        hold = self._hold
        if hold is None or topic != hold.topic:
            return False
        return kafka_partition(key.encode(), self._partitions) == hold.partition

    def _note(self, error: KafkaError) -> None:
        if error.fatal():
            self._error = error

    def _note_delivery(self, error: KafkaError | None, _: Message) -> None:
        self._error = error or self._error


def _create_topics(bootstrap: str, topics: Sequence[str], partitions: int) -> None:
    """Creates data topics with this many partitions; topics of transactions are created with one.

    Raises:
        confluent_kafka.KafkaException: one exists, or the broker does not answer.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [NewTopic(name, 1 if name.endswith(".transaction") else partitions, 1) for name in topics]
    for created in admin.create_topics(wanted).values():
        created.result(30)


def announce_empty_tables(bootstrap: str, prefix: str, tables: Iterable[str]) -> None:
    """Writes the notifications of a first snapshot that has found no row; raises as above."""
    topic = notification_topic(prefix)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in snapshot_notifications(dict.fromkeys(tables, 0)):
        producer.produce(topic, value)
    producer.flush(_FLUSH_SECONDS)


def kafka_partition(key: bytes, partitions: int) -> int:
    """The partition in which Kafka's producers put a key. Slow: a few microseconds."""
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    """32 bits, unsigned."""
    length = len(data)
    h = _SEED ^ length
    whole = length - length % 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def _receive(process: multiprocessing.process.BaseProcess, connection: Connection) -> Filled:
    try:
        answer = connection.recv()
    except EOFError:
        process.join()
        raise RunFailedError(_PROCESS, f"ended with exit code {process.exitcode}") from None
    if isinstance(answer, Filled):
        return answer
    raise RunFailedError(_PROCESS, str(answer))


def _shared_out(workload: Workload, names: Sequence[str], processes: int) -> list[Collection[str]]:
    """The topics in about equal shares, by what a sample of the workload writes to them."""
    records: Counter[str] = Counter(dict.fromkeys(names, 1))
    for transaction in islice(workload.transactions(0, 1), _SAMPLE):
        records[TRANSACTIONS] += 1  # two small records without headers: about the work of one row
        for operation in transaction.operations:
            if not isinstance(operation, NO_CHANGES):
                records[operation.table] += 1
    shares: list[tuple[int, list[str]]] = [(0, []) for _ in range(min(processes, len(names)))]
    for name, number in records.most_common():
        load, topics = min(shares, key=lambda share: share[0])
        shares.remove((load, topics))
        shares.append((load + number, [*topics, name]))
    return [frozenset(topics) for _, topics in shares]


def _serve(connection: Connection, settings: _Task) -> None:
    """Fills whenever it is asked to, until the connection is closed."""
    gc.disable()  # rows and texts make no cycles; looking for them takes a third of the time
    try:
        output = TopicOutput(settings.bootstrap, settings.partitions)
        share = Share(settings.workload, settings.connector, settings.topics, output.put)
        while True:
            events, hold = connection.recv()
            connection.send(_fill(share, output, events, hold, SystemClock()))
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 - the other process raises it
        connection.send(f"{type(error).__name__}: {error}")


def _fill(share: Share, output: TopicOutput, events: int, hold: HoldBack | None, clock: Clock) -> Filled:
    """One call's records, those that were held back included."""
    due = clock.monotonic() + (hold.seconds if hold else 0.0)
    output.hold(hold)
    done, transactions = share.begin()
    wanted = done + events
    while done < wanted:
        if clock.monotonic() >= due:
            output.hold(None)
        more = share.advance(min(_STEP, wanted - done) if hold else wanted - done)
        done, transactions = done + more[0], transactions + more[1]
    output.flush()
    if hold is not None:
        threading.Event().wait(max(0.0, due - clock.monotonic()))
        output.hold(None)
        output.flush()
    return Filled(done, transactions, share.log.last_commit_lsn)
