"""What goes wrong beyond psycopg's own errors.

::

    DatabaseError
    └── RefusedTransactionError   the database refuses a transaction again and again
"""


class DatabaseError(Exception):
    """Root of this package's errors."""


class RefusedTransactionError(DatabaseError):
    """Deadlocks or serialisation failures did not end.

    Attributes:
        attempts: How often it was tried.
        reason: What the database said last.
    """

    def __init__(self, attempts: int, reason: str) -> None:
        super().__init__(attempts, reason)
        self.attempts = attempts
        self.reason = reason

    def __str__(self) -> str:
        return f"a transaction was refused {self.attempts} times, last with: {self.reason}"
