import uuid
from collections.abc import Callable

import pytest

from slackwater.dev import KafkaBroker, RedisServer
from slackwater.protocol import CommittedTransaction, Cut


@pytest.fixture
def source() -> str:
    """A source nobody else uses: servers are shared by all tests of a session."""
    return f"src-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def redis_url(redis_server: RedisServer) -> str:
    return redis_server.url


@pytest.fixture(scope="session")
def bootstrap(kafka_broker: KafkaBroker) -> str:
    return kafka_broker.bootstrap


@pytest.fixture
def make_cut() -> Callable[..., Cut]:
    """Makes cuts whose transactions have the LSNs up to their own."""

    def make(source: str, lsn: int, *, timeline: int = 0, transactions: int = 1) -> Cut:
        first = lsn - transactions + 1
        return Cut(
            source=source,
            timeline=timeline,
            lsn=lsn,
            previous_lsn=first - 1,
            commit_ts_ms=1_795_206_861_409,
            event_count=lsn,
            transactions=tuple(
                CommittedTransaction(700 + i, first + i, 1_795_206_861_409) for i in range(transactions)
            ),
            end_offsets={f"{source}.inv.a": (lsn, 0, 3)},
            transaction_offset=lsn % 2**32,
        )

    return make
