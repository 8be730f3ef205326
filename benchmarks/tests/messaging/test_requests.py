"""What is counted on the wire, with a real client and by hand."""

from collections import Counter
from struct import pack

import psycopg
import pytest

from slackwater.dev import PostgresServer
from slackwater_bench.messaging.servers import KafkaRequests, PostgresRequests, watching
from slackwater_lab.servers.proxy import TcpProxy


def startup() -> bytes:
    body = pack(">I", 3 << 16) + b"user\0app\0\0"
    return pack(">I", 4 + len(body)) + body


def typed(kind: bytes, body: bytes = b"") -> bytes:
    return kind + pack(">I", 4 + len(body)) + body


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_statements_and_round_trips_are_counted_however_they_are_cut(chunk: int) -> None:
    asks_for_tls = pack(">II", 8, 80877103)
    parse_to_sync = b"".join(typed(kind, b"x\0") for kind in (b"P", b"B", b"D", b"E")) + typed(b"S")
    sent = (
        asks_for_tls + startup() + typed(b"p", b"Q") + typed(b"Q", b"BEGIN\0") + parse_to_sync + typed(b"X")
    )
    count: Counter[str] = Counter()
    client = PostgresRequests(count)
    for start in range(0, len(sent), chunk):
        client(sent[start : start + chunk])
    assert count == {"statements": 2, "round_trips": 2}


@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_requests_that_write_are_counted_however_they_are_cut(chunk: int) -> None:
    produce, fetch, end = (pack(">IHH", 4 + 7, key, 9) + b"x" * 7 for key in (0, 1, 26))
    sent = produce + fetch + end + fetch
    count: Counter[str] = Counter()
    client = KafkaRequests(count)
    for start in range(0, len(sent), chunk):
        client(sent[start : start + chunk])
    assert count == {"kafka_requests": 2}


@pytest.mark.integration
def test_a_client_of_postgresql_is_counted_through_a_proxy(postgres_server: PostgresServer) -> None:
    count: Counter[str] = Counter()
    proxy = TcpProxy(lambda: postgres_server.port)
    proxy.watch = watching(PostgresRequests, count)
    proxy.start()
    dsn = postgres_server.dsn().replace(f":{postgres_server.port}/", f":{proxy.port}/")
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            before = count.copy()
            connection.execute("SELECT 1")
            with connection.transaction():  # BEGIN and COMMIT
                connection.execute("SELECT %s", [2])
            assert count - before == {"statements": 4, "round_trips": 4}
    finally:
        proxy.stop()
