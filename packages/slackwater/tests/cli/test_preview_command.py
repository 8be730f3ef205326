"""What ``slackwater preview`` shows of transactions."""

from types import SimpleNamespace
from typing import Any

from slackwater.cli.commands.tail import change_events, preview_lines
from slackwater.client import Commit
from slackwater.engine.payloads import Document

COMMIT = Commit(source="inv", timeline=1, lsn=0x1FF, xid=7, commit_ts_ms=1_500)
ROW = (
    b'{"before":null,"after":{"id":1},"op":"c","source":{"schema":"public","table":"a","txId":7,"lsn":300,'
    b'"ts_ms":1,"snapshot":"false"},"transaction":{"id":"7:300","total_order":1,"data_collection_order":1}}'
)


class Transaction:
    """Records of one commit."""

    commit = COMMIT

    def __init__(self, *values: bytes) -> None:
        self._values = values

    def __iter__(self) -> Any:
        return iter([SimpleNamespace(value=lambda value=value: value) for value in self._values])


def test_changes_are_those_of_the_records_at_their_commit() -> None:
    transaction: Any = Transaction(ROW)
    assert list(change_events(transaction)) == [("public.a", "c", 0x1FF, None, b'{"id":1}', 300, None)]


def test_documents_are_shown_by_view_up_to_so_many() -> None:
    documents: dict[str, list[Document]] = {
        "orders": [(1, b'{"id":%d}' % number, b"{}") for number in range(4)],
        "totals": [(1, b"{}", None)],
        "quiet": [],
    }
    assert list(preview_lines([COMMIT, COMMIT], 1234, documents, 2)) == [
        "0/1FF  1970-01-01 00:00:01.500000 UTC  2 transactions, 1,234 change events",
        '  orders  {"id":0}  {}',
        '  orders  {"id":1}  {}',
        "  orders  and 2 more",
        "  totals  {}  deleted",
    ]
    assert next(preview_lines([COMMIT], 1, {}, 2)).endswith("1 transaction, 1 change events")
