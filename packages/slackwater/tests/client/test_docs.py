"""Every Python block of docs/consumers.md runs as it is there, against real servers.

What is copied from an example is tried where the example is (test_exactly_once). Addresses, topics and groups
are exchanged for those of the test. Something stands in for what a reader of the page has of their own, and
ends loops that would continue for ever.
"""

import asyncio
import re
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater.protocol import CommitPosition, KafkaSettings, LakeSettings, PostgresSettings, Servers
from slackwater_lab.publishing import PublishingPipeline, publishing_pipeline

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[4] / "docs" / "consumers.md"
EXAMPLES = [path.read_text() for path in (PAGE.parent / "examples").glob("*.py")]
BLOCKS = [
    block
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    if not any(block in example for example in EXAMPLES)
]


class EnoughError(Exception):
    """Ends a loop that is meant to continue."""


class Reader:
    """What a reader of the page has of their own."""

    def __init__(self) -> None:
        self.printed: list[tuple[Any, ...]] = []
        self.sent: list[bytes] = []

    def print(self, *values: Any) -> None:
        if len(self.printed) == 3:
            raise EnoughError
        self.printed.append(values)

    async def send(self, _: bytes, document: bytes) -> None:
        if len(self.sent) == 3:
            raise EnoughError
        self.sent.append(document)

    @property
    def names(self) -> dict[str, Any]:
        return {"print": self.print, "send": self.send, "lsn": "0/64"}


@pytest.fixture
def exchanged(
    kafka_broker: KafkaBroker, postgres_server: PostgresServer, tmp_path: Path
) -> Iterator[dict[str, str]]:
    """Texts of the page, and what stands for them; the outputs that it names hold what `documents` says."""
    own = f"d{uuid.uuid4().hex[:10]}"
    url, lake = postgres_server.dsn(), LakeSettings(place=str(tmp_path / "lake"))
    servers = Servers(kafka=KafkaSettings(kafka_broker.bootstrap), postgres=PostgresSettings(url), delta=lake)
    with ExitStack() as opened:

        def pipeline(name: str, view: str, output: str) -> PublishingPipeline:
            folder = tmp_path / f"{own}_{name}"
            return opened.enter_context(
                publishing_pipeline(folder, view=view, output=output, servers=servers)
            )

        made = [
            pipeline("orders", "orders_with_lines", f'topic = "{own}_orders_with_lines"'),
            pipeline("totals", "totals", f'topic = "{own}_totals"'),
            pipeline("shop_tables", "order_details", f'kind = "postgres"\ntable = "{own}.order_details"'),
            pipeline("shop_lake", "order_details", 'kind = "delta"\ntable = "shop_views.order_details"'),
        ]
        for each in made:
            for value in range(4):
                each.publish({17: value})
        names = ("orders_with_lines", "orders", "totals", "shop_tables", "shop_lake")
        groups = ("mailer", "notifier")
        yield {
            "localhost:9092": kafka_broker.bootstrap,
            "postgresql://reader@localhost/analytics": url,
            "s3://analytics/lake": lake.place,
            **{f'"{name}"': f'"{own}_{name}"' for name in (*names, *groups)},
        }


def run(block: str, exchanged: dict[str, str], names: dict[str, Any]) -> None:
    for text, own in exchanged.items():
        block = block.replace(text, own)
    with suppress(EnoughError):
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - the page is ours


def document(value: int) -> bytes:
    return b'{"id": 17, "value": %d}' % value


def test_every_block_of_the_page_runs_and_does_what_the_page_says(exchanged: dict[str, str]) -> None:
    reader = Reader()
    names = reader.names
    for block in BLOCKS:
        run(block, exchanged, names)
    assert [(each[0], each[2]) for each in reader.printed] == [
        (f"00000001-{lsn:016X}", document(value)) for value, lsn in enumerate((100, 200, 300))
    ]
    assert reader.sent == [document(value) for value in range(3)]
    snapshot = names["snapshot"]
    assert snapshot.position == CommitPosition(1, 400)
    assert [list(held) for held in snapshot.documents.values()] == [[document(3)], [document(3)]]
    assert asyncio.run(names["order_as_written"](17, "0/64")) == [document(3)]
    for name in ("orders", "totals", "tables"):
        names[name].close()
