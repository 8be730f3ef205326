import uuid
from collections.abc import Callable

import msgspec
import pytest
from confluent_kafka import Message

from slackwater.protocol import CommittedTransaction, Cut, PublishedCut

COMMIT_MS = 1_795_206_861_409


@pytest.fixture
def source() -> str:
    """A source nobody else uses: servers are shared by all tests of a session."""
    return f"src-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def published() -> Callable[..., PublishedCut]:
    """Makes cuts over ``(previous_lsn, lsn]`` whose transactions are named by ``{xid: lsn}``."""

    def make(
        lsn: int,
        previous_lsn: int,
        *,
        log: int = 0,
        events: int = 0,
        transactions: dict[int, int] | None = None,
        **others: object,
    ) -> PublishedCut:
        fields = {
            "source": "inv",
            "timeline": 1,
            "commit_ts_ms": COMMIT_MS,
            "end_offsets": {},
            "transaction_offset": 0,
            **others,
        }
        table = {lsn: lsn} if transactions is None else transactions
        cut = Cut(
            lsn=lsn,
            previous_lsn=previous_lsn,
            event_count=events or lsn,
            transactions=tuple(CommittedTransaction(x, c, COMMIT_MS) for x, c in table.items()),
            **fields,  # type: ignore[arg-type]
        )
        return PublishedCut(cut, log)

    return make


@pytest.fixture
def row_value() -> Callable[..., bytes]:
    """Makes values as Debezium writes them, without schemas."""

    def make(
        xid: int | None,
        lsn: int,
        *,
        op: str = "c",
        table: str = "inventory.orders",
        order: int = 1,
        snapshot: str = "false",
        before: object = None,
        after: object = None,
        **more: object,
    ) -> bytes:
        schema, _, name = table.partition(".")
        block = {"id": f"{xid}:{lsn}", "total_order": order, "data_collection_order": order}
        return msgspec.json.encode(
            {
                "before": before,
                "after": after,
                "source": {
                    "connector": "postgresql",
                    "name": "inv",
                    "ts_ms": COMMIT_MS,
                    "snapshot": snapshot,
                    "schema": schema,
                    "table": name,
                    "txId": xid,
                    "lsn": lsn,
                },
                "transaction": None if xid is None else block,
                "op": op,
                "ts_ms": COMMIT_MS + 5,
                **more,
            }
        )

    return make


@pytest.fixture
def record() -> Callable[..., Message]:
    """Makes records as a consumer returns them."""

    def make(
        value: bytes | None,
        *,
        offset: int = 0,
        key: bytes | None = b'{"id":1}',
        topic: str = "inv.inventory.orders",
        partition: int = 0,
    ) -> Message:
        return Message(topic=topic, partition=partition, offset=offset, key=key, value=value)

    return make
