"""What PostgreSQL's own log says was committed: the truth that change topics are compared with."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg

_TRUTH_SLOT = "slackwater_truth"
_CHANGE = re.compile(r"table (?P<table>.+?): (?P<kind>INSERT|UPDATE|DELETE|TRUNCATE):(?P<row>.*)", re.DOTALL)
_COLUMN = re.compile(r"(?P<name>\"[^\"]+\"|\w+)\[.*?\]:(?P<value>'(?:[^']|'')*'|\S+)", re.DOTALL)
_OPS = {"INSERT": "c", "UPDATE": "u", "DELETE": "d", "TRUNCATE": "t"}


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """One row change."""

    lsn: int
    table: str
    """``schema.table``."""
    op: str
    """``c``, ``u``, ``d`` or ``t``; a key update is a ``d`` and a ``c``, as for Debezium."""
    key: str
    """The key column's value as text; empty when there is none."""


@dataclass(frozen=True, slots=True)
class LoggedTransaction:
    """One committed transaction, prepared ones included."""

    xid: int
    changes: tuple[LoggedChange, ...]


class DatabaseLog:
    """Decodes the log with PostgreSQL's own ``test_decoding``, from the moment :meth:`begin` returns.

    It has a replication slot of its own, so it needs no connector and does not depend on one.

    Args:
        dsn: The database; all its tables have the key ``id``.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def begin(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            query = "SELECT pg_create_logical_replication_slot(%s, 'test_decoding')"
            connection.execute(query, [_TRUTH_SLOT])

    def transactions(self) -> list[LoggedTransaction]:
        """Everything committed since :meth:`begin` that changed rows, in commit order. Repeatable."""
        found: list[LoggedTransaction] = []
        changes: list[LoggedChange] = []
        with psycopg.connect(self._dsn, autocommit=True) as connection, connection.cursor() as cursor:
            query = "SELECT (lsn - '0/0')::bigint, xid::text::bigint, data"
            query += " FROM pg_logical_slot_peek_changes(%s, NULL, NULL)"
            cursor.execute(query.encode(), [_TRUTH_SLOT])
            for lsn, xid, text in cursor:
                if text.startswith("COMMIT"):
                    if changes:
                        found.append(LoggedTransaction(xid, tuple(changes)))
                    changes = []
                elif not text.startswith("BEGIN"):
                    changes += self._changes(lsn, text)
        return found

    def _changes(self, lsn: int, text: str) -> Iterator[LoggedChange]:
        match = _CHANGE.match(text)
        if match is None:
            return
        op, row = _OPS[match["kind"]], match["row"]
        columns = _COLUMN.finditer(row)
        keys = [c["value"].strip("'").replace("''", "'") for c in columns if c["name"] == "id"]
        if op == "t":
            for table in match["table"].split(","):
                yield LoggedChange(lsn, table.strip(), op, "")
        elif op == "u" and row.lstrip().startswith("old-key:") and len(set(keys)) > 1:
            yield LoggedChange(lsn, match["table"], "d", keys[0])
            yield LoggedChange(lsn, match["table"], "c", keys[-1])
        else:
            yield LoggedChange(lsn, match["table"], op, keys[-1] if keys else "")
