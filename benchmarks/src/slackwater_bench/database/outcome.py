"""What became of a transaction whose commit was not answered.

The id alone does not tell: after a crash PostgreSQL gives ids of transactions that left no trace to others.
So a row decides that nobody but this writer changes.
"""

from psycopg import errors, sql

from slackwater_bench.database.statements import Connection
from slackwater_bench.workloads.workload import Delete, Insert, Operation, Plus, Read, Transaction, Update

_LOW_BITS = 0xFFFFFFFF


def is_committed(connection: Connection, transaction: Transaction, xid: str) -> bool | None:
    """Whether a transaction was committed; None: the database still works on it.

    Args:
        connection: Not the one that executed it.
        transaction: What was to be committed.
        xid: Its id.

    Raises:
        psycopg.OperationalError: the database is away again.
    """
    try:
        row = connection.execute("SELECT pg_xact_status(%s::xid8)", [xid]).fetchone()
    except errors.InvalidParameterValue:  # an id the database does not remember
        connection.rollback()
        return False
    if row is not None and row[0] == "in progress":
        connection.rollback()
        return None
    witness = _witness(transaction)
    found = (row is not None and row[0] == "committed") if witness is None else None
    if witness is not None:
        found = _has_happened(connection, witness, int(xid) & _LOW_BITS)
    connection.rollback()
    return found


def _witness(transaction: Transaction) -> Insert | Update | Delete | None:
    """The last operation on a row that belongs to the writer."""
    return next((each for each in reversed(transaction.operations) if _is_own(each)), None)  # type: ignore[return-value]


def _is_own(operation: Operation) -> bool:
    match operation:
        case Update(_, _, changes):
            return not any(isinstance(value, Plus) for value in changes.values())
        case Read():
            return False
    return True


def _has_happened(connection: Connection, witness: Insert | Update | Delete, xid: int) -> bool:
    match witness:
        case Insert(_, row):
            row_id = row["id"]
        case Update(_, old_id, changes):
            row_id = changes.get("id", old_id)  # type: ignore[assignment]
        case Delete(_, old_id):
            row_id = old_id
    query = sql.SQL("SELECT xmin::text FROM {} WHERE id = %s").format(
        sql.Identifier(*witness.table.split("."))
    )
    found = connection.execute(query, [row_id]).fetchone()
    if isinstance(witness, Delete):
        return found is None
    return found is not None and found[0] == str(xid)
