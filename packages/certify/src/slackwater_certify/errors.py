"""Errors of the certifier, which shares no code with what it judges.

::

    CertifyError                  a topic, table or folder cannot be read
    └── CertifyConfigError        the specification, or a file that it names, cannot be used   exit code 2
"""


class CertifyError(Exception):
    """The base class of all errors that this package raises."""

    exit_code = 1

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem, hint)
        self.problem = problem
        self.hint = hint
        """What to do; empty if the problem already says so."""

    def __str__(self) -> str:
        return f"{self.problem}; {self.hint}" if self.hint else self.problem


class CertifyConfigError(CertifyError):
    """The specification, its tables or its view cannot be used, or an address is missing."""

    exit_code = 2


def wrong_key(file: str, key: str, problem: str) -> CertifyConfigError:
    """Returns the error for a key of certify.toml or, with an empty key, for the whole file."""
    where = f"{file}: {key}" if key else file
    return CertifyConfigError(f"{where}: {problem}", "`slackwater-certify --help` shows the format")


def keyless_identity(table: str) -> CertifyConfigError:
    """Returns the error for a table whose deletes and updates do not contain its primary key."""
    return CertifyConfigError(
        f"table {table}: its deletes and updates do not contain the primary key "
        "(REPLICA IDENTITY USING INDEX), so its history cannot be replayed",
        "ALTER TABLE … REPLICA IDENTITY DEFAULT, or FULL, and take a new snapshot into new topics",
    )


def without_transactions(what: str) -> CertifyConfigError:
    """Returns the error for topics that do not tell which transaction a change belongs to."""
    return CertifyConfigError(
        f"{what}, so nobody knows which states were committed",
        "the connector needs provide.transaction.metadata=true from the snapshot on; source.transactions is "
        "the name of its transaction topic, if it is not Debezium's",
    )


def truncated(topic: str, partition: int, offset: int) -> CertifyConfigError:
    """Returns the error for a topic of the source that has lost its first records."""
    return CertifyConfigError(
        f"{topic}/{partition} begins at offset {offset}: records of the source were deleted, and right "
        "outputs would look torn",
        "take a new snapshot into topics that keep all records, or judge by invariants (--mode invariant)",
    )


def malformed(place: str, problem: str, value: str) -> CertifyError:
    """Returns the error for a record at ``topic/partition/offset``, with the beginning of its value."""
    return CertifyError(
        f"record {place} is not a Debezium record in JSON ({problem}): {value}",
        "the connector needs the JSON converter and provide.transaction.metadata=true",
    )


def unreadable(what: str, reason: str) -> CertifyError:
    """Returns the error for something that cannot be read."""
    return CertifyError(f"{what} cannot be read: {reason}", "check the address and the name")
