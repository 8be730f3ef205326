"""Errors of the stage.

::

    StageError
    ├── PackingError                a change event cannot be packed; bad input, the source adds the place
    │   ├── UnknownTableError       no input of the view reads this table
    │   ├── UnsupportedChangeError  an operation that no row can have
    │   ├── MissingRowImageError    a row image that the operation must have is absent
    │   └── MissingOldRowError      the old row is needed and was not sent (replica identity)
    ├── UnreadablePayloadError      bytes that no packer of this version wrote
    ├── UnknownRowError             a change of a row the stage has never seen
    ├── SplitKeyError               scope aggregate: rows of one stage key come from several partitions
    ├── TruncateInGroupsError       scope aggregate: TRUNCATE, which concerns all groups at once
    ├── ImpossibleCountError        an aggregate would count fewer rows than none
    ├── StateMismatchError          the state belongs to another view, or was written by a newer version
    ├── UnreadableStateError        a blob of the state log cannot be read
    ├── IndexFolderError            the local index cannot be kept
    ├── UnsupportedScopeError       scope aggregate: a pipeline that is not one stage over rows
    └── RefusedSettingError         a Spark setting that must not be on
"""

from slackwater_spark.errors import SlackwaterSparkError

FULL_HINT = "ALTER TABLE {table} REPLICA IDENTITY FULL"


class StageError(SlackwaterSparkError):
    """Root of the stage's errors."""


class PackingError(StageError):
    """A change event cannot be packed."""


class UnknownTableError(PackingError):
    """A change of a table that no input reads."""

    def __init__(self, table: str, known: tuple[str, ...]) -> None:
        super().__init__(table, known)
        self.table = table
        self.known = known

    def __str__(self) -> str:
        return f"a change of table {self.table}, but the view reads {', '.join(self.known)}"


class UnsupportedChangeError(PackingError):
    """A change that does not say which rows it changes."""

    def __init__(self, table: str, op: str) -> None:
        super().__init__(table, op)
        self.table = table
        self.op = op

    def __str__(self) -> str:
        return (
            f"operation {self.op!r} on {self.table}: expected c, r, u, d or t; does something else than "
            "Debezium's PostgreSQL connector write to this topic?"
        )


class MissingRowImageError(PackingError):
    """A record lacks the row that its operation must carry."""

    def __init__(self, table: str, op: str, field: str) -> None:
        super().__init__(table, op, field)
        self.table = table
        self.op = op
        self.field = field

    def __str__(self) -> str:
        return f"operation {self.op!r} on {self.table}: expected an object in {self.field!r}, got null"


class MissingOldRowError(PackingError):
    """The old row is needed to know which key a row leaves, and is not there."""

    def __init__(self, table: str, op: str, column: str) -> None:
        super().__init__(table, op, column)
        self.table = table
        self.op = op
        self.column = column

    def __str__(self) -> str:
        return (
            f"operation {self.op!r} on {self.table} carries no old value of {self.column}, which says where "
            f"the row was before; run {FULL_HINT.format(table=self.table)} and take a new snapshot"
        )


class UnreadablePayloadError(StageError):
    """Bytes that are no packed events."""

    def __init__(self, bucket: int, reason: str) -> None:
        super().__init__(bucket, reason)
        self.bucket = bucket
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"bucket {self.bucket}: payload is not what this version packs: {self.reason}; "
            "do driver and executors run the same version?"
        )


class UnknownRowError(StageError):
    """A change of a row that was never inserted, as far as the state knows."""

    def __init__(self, table: str, key: str, commit_lsn: int, problem: str) -> None:
        super().__init__(table, key, commit_lsn, problem)
        self.table = table
        self.key = key
        self.commit_lsn = commit_lsn
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"{self.table}, key {self.key}, commit LSN {self.commit_lsn}: {self.problem}, but the state has "
            f"no such row. Either old rows are not complete ({FULL_HINT.format(table=self.table)}), or the "
            "topic does not start with a snapshot of the table; take one and start with a new checkpoint"
        )


class SplitKeyError(StageError):
    """In scope ``aggregate`` a stage key has rows in more than one partition."""

    def __init__(self, table: str, key: str, commit_lsn: int, partition: int, owner: int) -> None:
        super().__init__(table, key, commit_lsn, partition, owner)
        self.table = table
        self.key = key
        self.commit_lsn = commit_lsn
        self.partition = partition
        self.owner = owner
        """The partition that rows of this key came from before."""

    def __str__(self) -> str:
        return (
            f"{self.table}, key {self.key}, commit LSN {self.commit_lsn}: a row in partition "
            f"{self.partition}, but rows of this key came from partition {self.owner}. Scope 'aggregate' "
            "needs all inputs partitioned alike by the view's key: set the connector's message.key.columns "
            "to the columns of that key for every table, or add the transform PartitionRouting with them; "
            "then take a new snapshot into new topics and start with a new checkpoint. Or use scope 'strict'"
        )


class TruncateInGroupsError(StageError):
    """In scope ``aggregate`` a table was truncated."""

    def __init__(self, table: str, commit_lsn: int, partition: int) -> None:
        super().__init__(table, commit_lsn, partition)
        self.table = table
        self.commit_lsn = commit_lsn
        self.partition = partition

    def __str__(self) -> str:
        return (
            f"TRUNCATE of {self.table}, commit LSN {self.commit_lsn}, in partition {self.partition}: it "
            "concerns the rows of all partitions, which in scope 'aggregate' are at other commits. Use "
            "DELETE, or scope 'strict'; to go on, take a new snapshot and start with a new checkpoint"
        )


class ImpossibleCountError(StageError):
    """What was added to a group and taken away cannot be."""

    def __init__(self, group: str, what: str, count: int, commit_lsn: int) -> None:
        super().__init__(group, what, count, commit_lsn)
        self.group = group
        self.what = what
        """The aggregate, and for a multiset the value."""
        self.count = count
        self.commit_lsn = commit_lsn

    def __str__(self) -> str:
        return (
            f"group {self.group}, commit LSN {self.commit_lsn}: {self.what} counts {self.count} rows, "
            "expected none less than 0, and all 0 in a group without rows: a row was taken away that was "
            "never added. The state is damaged, or this is a bug: start with a new checkpoint, and report it"
        )


class UnsupportedScopeError(StageError):
    """A pipeline that cannot run in scope ``aggregate``."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"scope 'aggregate': the pipeline {self.problem}; its partitions are at different commits, so "
            "only views that one key joins and groups are possible. Use scope 'strict'"
        )


class StateMismatchError(StageError):
    """A checkpoint's state cannot be continued."""

    def __init__(self, bucket: int, what: str, expected: str, got: str) -> None:
        super().__init__(bucket, what, expected, got)
        self.bucket = bucket
        self.what = what
        self.expected = expected
        self.got = got

    def __str__(self) -> str:
        return (
            f"bucket {self.bucket}: the state's {self.what} is {self.got}, expected {self.expected}; "
            "a changed view or another version needs a new checkpoint"
        )


class UnreadableStateError(StageError):
    """A blob of the state log is damaged."""

    def __init__(self, bucket: int, reason: str) -> None:
        super().__init__(bucket, reason)
        self.bucket = bucket
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"bucket {self.bucket}: the state log in the checkpoint cannot be read: {self.reason}; restore "
            "the checkpoint or start with a new one"
        )


class IndexFolderError(StageError):
    """The local index cannot be written."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder = folder
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"index folder {self.folder}: {self.reason}; is the disk full or the folder not writable? "
            "Nothing is lost: the state is in the checkpoint. Another place: the stage's index root, or "
            "SPARK_LOCAL_DIRS"
        )


class RefusedSettingError(StageError):
    """A Spark setting that would break a promise."""

    def __init__(self, setting: str, value: str, expected: str, why: str) -> None:
        super().__init__(setting, value, expected, why)
        self.setting = setting
        self.value = value
        self.expected = expected
        self.why = why

    def __str__(self) -> str:
        return f"Spark setting {self.setting} is {self.value!r}, expected {self.expected}: {self.why}"
