"""Topics with a made-up source and an output of it."""

import json
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from slackwater_certify.specification import load_specification
from slackwater_certify.testing.source import SPECIFICATION, Record, RightOutput, write_specification

PARTITIONS = 3


class Topics:
    """Topics of a source and of an output of it, named after a test.

    Attributes:
        plain: judges the output without LSNs.
        claiming: judges it by header and commit records.
    """

    def __init__(self, bootstrap: str, name: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": 1}
        )
        self.output, self.prefix = f"{name}.out", name
        text = SPECIFICATION.replace('name = "orders"', f'name = "{self.output}"')
        text = text.replace('name = "shop"', f'name = "{name}"')
        self.plain = load_specification(write_specification(folder, text))
        claims = f'commits = "{self.output}.commits"\nlsn_header = "lsn"\n[source]'
        self.claiming = load_specification(write_specification(folder, text.replace("[source]", claims)))
        self._create()

    def write_source(self, records: Iterable[Record]) -> None:
        """Writes records as a connector does: the partition follows from the key."""
        producer = self._producer
        for record in records:
            producer.produce(record.topic, record.value, record.key)
        producer.flush(30)

    def write_output(self, output: RightOutput) -> None:
        """Writes outputs to their partitions, and commit records; partitions must be empty before."""
        producer = self._producer
        for each in output.outputs:
            value = None if each.document is None else json.dumps(each.document)
            headers: dict[str, str | bytes | None] = {"lsn": str(each.lsn)}
            producer.produce(
                self.output,
                value,
                json.dumps(each.key),
                each.partition,
                timestamp=each.visible_ms,
                headers=headers,
            )
        for commit in output.commits:
            ranges = {str(each.partition): [each.count, each.first, each.last] for each in commit.ranges}
            content = {
                "v": 1,
                "pipeline": "orders",
                "source": self.prefix,
                "timeline": commit.timeline,
                "commit_lsn": commit.lsn,
                "previous_lsn": commit.previous_lsn,
                "xid": None,
                "commit_ts": commit.commit_ts_ms,
                "offsets": {self.output: ranges},
            }
            producer.produce(f"{self.output}.commits", json.dumps(content), timestamp=commit.visible_ms)
        producer.flush(30)

    def _create(self) -> None:
        partitions = {
            f"{self.prefix}.shop.orders": PARTITIONS,
            f"{self.prefix}.shop.lines": PARTITIONS,
            f"{self.prefix}.transaction": 1,
            self.output: PARTITIONS,
            f"{self.output}.commits": 1,
        }
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        topics = [NewTopic(topic, count, 1) for topic, count in partitions.items()]
        for created in admin.create_topics(topics).values():
            created.result(300)
