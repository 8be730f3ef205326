"""Writes topics of a source that only one test uses, as Debezium writes them."""

import uuid

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater_cdc.testing import RUN_HEADER, Oracle, partition_of, transaction_values
from slackwater_markers import KafkaCutLog, RedisMarkerStore
from slackwater_protocol import Cut

_ANSWER_SECONDS = 300


class SyntheticSource:
    """Writes transactions to Kafka, knows which cuts are right, and reads those that were published.

    Args:
        bootstrap: The brokers.
        redis_url: Where sidecars publish.
        tables: Its tables, ``schema.table``; rows go to them in turn.
        partitions: Of each data topic.
    """

    def __init__(
        self,
        bootstrap: str,
        redis_url: str,
        *,
        tables: tuple[str, ...] = ("shop.orders", "shop.lines"),
        partitions: int = 4,
    ) -> None:
        self.name = f"s{uuid.uuid4().hex[:10]}"
        self.bootstrap = bootstrap
        self.redis_url = redis_url
        self.tables = tables
        self.partitions = partitions
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.log = KafkaCutLog(self.name, bootstrap)
        self.store = RedisMarkerStore.connect(redis_url)
        self.oracle = Oracle()
        self.offsets: dict[tuple[str, int], int] = {}
        """End offsets of what was written, by topic without the source's name, and partition."""
        self.newest_lsn = 0
        self._lsn_base = 0
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 1, "enable.idempotence": True}
        )

    def create(self, *topics: str, partitions: int | None = None) -> None:
        """Makes topics, named without the source's name."""
        count = self.partitions if partitions is None else partitions
        new = [NewTopic(f"{self.name}.{topic}", count, 1) for topic in topics]
        for made in self.admin.create_topics(new).values():
            made.result(_ANSWER_SECONDS)

    def create_all(self) -> None:
        """Makes all topics of the source."""
        self.create(*self.tables)
        self.create("transaction", "notifications", partitions=1)

    def put(self, topic: str, partition: int, value: bytes | None, key: bytes = b"k") -> int:
        """Writes a record; returns the offset it will have."""
        headers: list[tuple[str, str | bytes | None]] = [(RUN_HEADER, b"run1")]
        self._producer.produce(f"{self.name}.{topic}", value, key=key, partition=partition, headers=headers)
        spot = topic, partition
        self.offsets[spot] = self.offsets.get(spot, 0) + 1
        return self.offsets[spot] - 1

    def flush(self) -> None:
        """Returns when everything is acknowledged."""
        self._producer.flush(_ANSWER_SECONDS)

    def commit(self, first: int, last: int) -> None:
        """Commits transactions with the xids in ``[first, last)``, of three rows each."""
        for xid in range(first, last):
            keys = [(self.tables[n % len(self.tables)], xid * 7 + n) for n in range(3)]
            lsn = self._lsn_base + xid * 100
            begin, rows, end = transaction_values(xid, lsn, [(t, {"id": k}) for t, k in keys], xid)
            self.newest_lsn = lsn + 3
            self.oracle.add_commit(xid, self.newest_lsn)
            self.put("transaction", 0, begin)
            for (table, value), (_, key) in zip(rows, keys, strict=True):
                number = partition_of(str(key).encode(), self.partitions)
                offset = self.put(table, number, value)
                self.oracle.add_row(self.newest_lsn, key, (f"{self.name}.{table}", number, offset))
            self.put("transaction", 0, end)
        self.flush()

    def start_lsns_over(self, next_xid: int) -> None:
        """Gives low LSNs to what is committed from now on, and judges it alone: a database restored."""
        self._lsn_base = 50 - next_xid * 100
        self.oracle = Oracle()

    def logged(self) -> list[Cut]:
        """Returns the cuts of the log that rise; the others are repeats of a second sidecar."""
        cuts: list[Cut] = []
        for published in self.log.tail(-1):
            if not cuts or published.cut.position > cuts[-1].position:
                cuts.append(published.cut)
        return cuts

    def in_redis(self) -> int:
        """Returns the LSN of the newest cut in Redis; 0 when there is none."""
        held = self.store.position(self.name)
        return held.position.lsn if held else 0

    def has_moved_beyond(self, lsn: int) -> bool:
        """Says if Redis has a cut above an LSN."""
        return self.in_redis() > lsn

    def is_published(self) -> bool:
        """Says if everything that was committed is in Redis."""
        return self.in_redis() == self.newest_lsn

    def close(self) -> None:
        """Frees connections."""
        self.flush()
        self.log.close()
        self.store.close()
