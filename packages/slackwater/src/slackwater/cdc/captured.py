"""Whether the topics of a connector contain every row of a table, as far as the catalogue shows.

PostgreSQL decodes the rows that statements write. Everything else that changes the result of a SELECT
produces no event: a row filter, an inherited table, a partition that is attached with its rows, a column that
ALTER TABLE rewrites. Some of it is visible at any time (:func:`faults_of_table`), the rest only as a
difference between two examinations (:func:`changes_between`).
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from slackwater.protocol import SourceTopics
from slackwater.protocol.keys import cut_log_topic

_KINDS = {"v": "a view", "m": "a materialised view", "f": "a foreign table", "S": "a sequence"}
_PERSISTENCE = {"u": "unlogged", "t": "temporary"}
_TEXT, _VARCHAR = 25, 1043
_WIDER = {("smallint", "integer"), ("smallint", "bigint"), ("integer", "bigint")}
"""Types whose change leaves the values as they are in records, unless ALTER TABLE … USING computes others."""
_NEW_TOPICS = (
    "take a new snapshot into new topics (a connector with another topic.prefix), and begin a new revision "
    "of the pipelines that read them"
)
_TOUCH = "write the rows again, for example with `UPDATE {table} SET {column} = {column}`"


class SeenColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a table."""

    name: str
    number: int
    """Its ``attnum``: a column that is dropped and added again has another one."""
    type: str
    type_oid: int
    changed: str
    """The transaction that last changed its definition."""
    is_sent: bool
    """Whether the publication's column list contains it."""
    output: str = ""
    """The function that writes its values, or the elements of an array, as text: ``float8out``."""
    labels: Mapping[str, tuple[str, str]] = {}
    """For an enum, by the label's oid: the label, and the transaction that last changed it."""


class SeenPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that contains rows, at any depth below its table."""

    name: str
    """Quoted for SQL."""
    oid: int
    file: int
    kind: str
    persistence: str
    identity: str
    changed: str
    """The transaction that last changed its definition or its file."""
    is_uncounted: bool
    """Whether no row was counted in its file, because it is new or TRUNCATE created it."""
    attached: str
    """The transaction that made it a partition of its table."""
    attached_command: int
    """The number of the command within that transaction."""


class SeenTable(msgspec.Struct, frozen=True, kw_only=True):
    """What the catalogue says about a table."""

    name: str
    """``schema.table``."""
    quoted: str = ""
    """The name quoted for SQL."""
    oid: int = 0
    """0: the table does not exist."""
    kind: str = "r"
    persistence: str = "p"
    identity: str = "d"
    told: Mapping[str, tuple[str, ...]] = {}
    """The columns of an old row that deletes and updates contain, by the name of the table or the partition.

    A table with REPLICA IDENTITY FULL, or whose rows cannot be deleted or updated, is omitted.
    """
    file: int = 0
    changed: str = ""
    """The transaction that last changed its definition or its file."""
    owner: int = 0
    named: str = ""
    """The transaction that last changed its name, schema or owner."""
    key: tuple[int, ...] = ()
    """The numbers of the primary key's columns."""
    unique: tuple[tuple[str, ...], ...] = ()
    """The columns of each unique index without NULL, including the primary key's."""
    columns: tuple[SeenColumn, ...] = ()
    children: tuple[str, ...] = ()
    """Tables that inherit from it, without partitions."""
    partitions: tuple[SeenPartition, ...] = ()
    has_publication: bool = False
    """Whether the requested publication exists."""
    is_published: bool = False
    via_root: bool = True
    filter: str = ""
    """The publication's row filter for this table."""
    lacks: tuple[str, ...] = ()
    """Operations that the publication does not publish."""
    options: str = ""
    """The transaction that last changed the publication's options."""
    member: int = 0
    """The oid of the table's entry in the publication; 0: it has all tables, or those of a schema."""
    hides_rows: bool = False
    """Whether row-level security applies to the connector's user."""
    settings: Mapping[str, str] = {}
    """The settings in sessions of the connector's user that determine how values are written."""


class DeclaredTable(NamedTuple):
    """What a pipeline declares of a table, besides its columns."""

    key: Collection[str] = ()
    added: Mapping[str, object] = {}
    """The columns that were added later, each with its value in rows from before; None is NULL."""


class Proof(msgspec.Struct, frozen=True):
    """A question about rows; a change counts only as long as the answer is yes."""

    relation: str
    """The table, quoted for SQL."""
    condition: str
    """The condition on its rows, with %s."""
    parameters: tuple[str | int, ...]


class CapturedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that makes a view over a table differ from a SELECT over it."""

    table: str
    column: str = ""
    """Only views that use this column are affected; empty: all that read the table."""
    text: str
    hint: str
    proof: Proof | None = None

    @property
    def subject(self) -> str:
        """The table or column, as a finding names it."""
        return subject_of(self.table, self.column)


def subject_of(table: str, column: str = "") -> str:
    """Returns how a finding names a table, or a column of it."""
    return f"column {table}.{column}" if column else f"table {table}"


def faults_of_table(table: SeenTable, key: Collection[str] = ()) -> Iterator[CapturedFinding]:
    """Yields the reasons why the topics cannot have every row of a table, whatever has happened to it.

    The key is the primary key that a pipeline declares; if none declares one, the database's is used.
    """
    if not table.oid:
        hint = "check the name; `slackwater schema pull --all` lists the tables"
        yield _found(table, "the database has no such table", hint)
        return
    if table.kind in _KINDS:
        text = f"it is {_KINDS[table.kind]}, whose rows are not in PostgreSQL's log"
        yield _found(table, text, "capture the tables that it reads, and join them in the pipeline")
        return
    for part, persistence in [
        ("it", table.persistence),
        *((f"its partition {each.name}", each.persistence) for each in table.partitions),
    ]:
        if persistence in _PERSISTENCE:
            text = f"{part} is {_PERSISTENCE[persistence]}, so its changes are not in PostgreSQL's log"
            yield _found(table, text, f"ALTER TABLE … SET LOGGED, then {_NEW_TOPICS}")
    if table.children:
        text = (
            f"{', '.join(table.children)} inherit from it: a SELECT shows their rows, but their changes are "
            "written under their own names"
        )
        yield _found(table, text, "declare the inheriting tables, or make it a partitioned table")
    yield from key_faults(table, key)
    yield from _partition_faults(table)
    if table.has_publication:
        yield from _publication_faults(table)
    if table.hides_rows:
        text = "row-level security hides rows from the connector's user in snapshots, but not in changes"
        yield _found(table, text, f"ALTER ROLE … BYPASSRLS for the connector's user, then {_NEW_TOPICS}")
    yield from _setting_faults(table)


def _setting_faults(table: SeenTable) -> Iterator[CapturedFinding]:
    """Yields the columns whose values PostgreSQL does not write as Debezium reads them."""
    is_escaped = table.settings.get("bytea_output") == "escape"
    is_rounded = int(table.settings.get("extra_float_digits", "1")) < 1
    for column in table.columns:
        if column.output == "byteaout" and is_escaped:
            text = (
                f"the bytes of column {column.name} are written as text, which Debezium reads as hexadecimal"
            )
            setting = "bytea_output = 'hex'"
        elif column.output in ("float4out", "float8out") and is_rounded:
            text = f"the numbers of column {column.name} are rounded when they are written"
            setting = "extra_float_digits = 1"
        else:
            continue
        hint = f"ALTER ROLE … SET {setting} for the connector's user, restart the connector, then"
        yield _found(table, f"{text} ({setting.partition(' ')[0]})", f"{hint} {_NEW_TOPICS}", column.name)


def key_faults(table: SeenTable, declared: Collection[str]) -> Iterator[CapturedFinding]:
    """Yields why changes cannot be applied exactly by the declared key, or else by the table's own."""
    if declared and not any(set(columns) <= set(declared) for columns in table.unique):
        text = (
            f"its declared primary key ({', '.join(declared)}) is neither one in the database nor a unique "
            "index without NULL, so rows that are equal there would count as one"
        )
        hint = f"declare the key that the database has, or ALTER TABLE … ADD PRIMARY KEY; then {_NEW_TOPICS}"
        yield _found(table, text, hint)
    key = declared or [column.name for column in table.columns if column.number in table.key]
    for part, columns in table.told.items():
        if not set(key) <= set(columns):
            text = (
                f"deletes and updates of {part} do not contain the primary key ({', '.join(key)}), but only "
                f"{', '.join(columns)} (REPLICA IDENTITY)"
            )
            hint = (
                "declare the primary key of the database, with REPLICA IDENTITY DEFAULT, or "
                f"ALTER TABLE {part} REPLICA IDENTITY FULL; then {_NEW_TOPICS}"
            )
            yield _found(table, text, hint)


def _partition_faults(table: SeenTable) -> Iterator[CapturedFinding]:
    for partition in table.partitions:
        if partition.kind in _KINDS:
            text = (
                f"its partition {partition.name} is {_KINDS[partition.kind]}, whose changes are not decoded"
            )
            yield _found(table, text, "capture the table on its own server, as another source")
        if table.identity == "f" != partition.identity:
            text = f"its partition {partition.name} does not have the table's REPLICA IDENTITY FULL"
            hint = f"ALTER TABLE {partition.name} REPLICA IDENTITY FULL; partitions do not inherit it"
            yield _found(table, text, hint)


def _publication_faults(table: SeenTable) -> Iterator[CapturedFinding]:
    if not table.is_published:
        text = "the publication does not contain it, so the connector gets none of its changes"
        hint = "ALTER PUBLICATION … ADD TABLE"
        if table.kind == "p" and not table.via_root:
            text = "its changes are published under the names of its partitions"
            hint = "ALTER PUBLICATION … SET (publish_via_partition_root = true)"
        yield _found(table, text, f"{hint}, then {_NEW_TOPICS}")
        return
    if table.filter:
        text = f"the publication publishes only its rows with {table.filter}"
        yield _found(table, text, f"ALTER PUBLICATION … SET TABLE without WHERE, then {_NEW_TOPICS}")
    if table.lacks:
        hint = "ALTER PUBLICATION … SET (publish = 'insert, update, delete, truncate')"
        text = f"the publication does not publish {', '.join(table.lacks)}"
        yield _found(table, text, f"{hint}, then {_NEW_TOPICS}")
    for column in table.columns:
        if not column.is_sent:
            text = f"the publication's column list does not contain column {column.name}"
            hint = f"ALTER PUBLICATION … SET TABLE without a list of columns, then {_NEW_TOPICS}"
            yield _found(table, text, hint, column.name)


def shared_topics(topics: SourceTopics, tables: Iterable[str]) -> Iterator[CapturedFinding]:
    """Yields the tables whose topics also contain other records because of the names that Debezium chose.

    Kafka allows few characters in the names of topics, and at most 249. Rows with the same key then replace
    each other in a compacted topic, and schemas of one subject contradict each other. Tables that a transform
    routes elsewhere share a topic on purpose.
    """
    own = {topics.transactions: "its transactions", topics.notifications: "its notifications"}
    own |= {topics.heartbeats: "its heartbeats", cut_log_topic(topics.source): "the cuts of the source"}
    sharing: dict[str, list[str]] = {}
    for table in sorted(set(tables) - topics.routed.keys()):
        sharing.setdefault(topics.data(table), []).append(table)
    for topic, named in sharing.items():
        for table in named:
            others = [f"table {other}" for other in named if other != table]
            if others := [*others, *([own[topic]] if topic in own else [])]:
                text = f"its topic {topic} is also that of {', '.join(others)}"
                yield _found(SeenTable(name=table), text, "rename one of them, or do not capture one of them")


def omitted_by(
    properties: Mapping[str, str], used: Mapping[str, Collection[str]]
) -> Iterator[CapturedFinding]:
    """Yields the tables and columns that a connector's filters leave out."""
    for name, columns in used.items():
        table = SeenTable(name=name)
        schema = name.partition(".")[0]
        wrong = _filter_of(properties, "schema", schema) or _filter_of(properties, "table", name)
        if wrong is not None:
            text = f"the connector's {wrong} leaves it out"
            yield _found(table, text, f"change {wrong}, then {_NEW_TOPICS}")
            continue
        for column in columns:
            if (wrong := _filter_of(properties, "column", f"{name}.{column}")) is not None:
                text = f"the connector's {wrong} leaves out column {column}"
                yield _found(table, text, f"change {wrong}, then {_NEW_TOPICS}", column)


def _filter_of(properties: Mapping[str, str], kind: str, name: str) -> str | None:
    """Returns the property that leaves out this name; Debezium's patterns match whole names."""
    for words, is_wanted in (("include.list", True), ("exclude.list", False)):
        patterns = properties.get(f"{kind}.{words}", "")
        if patterns and _matches(patterns, name) is (not is_wanted):
            return f"{kind}.{words}"
    return None


def _matches(patterns: str, name: str) -> bool | None:
    """Returns whether one of the patterns matches; None if that cannot be decided here."""
    try:
        return any(
            re.fullmatch(pattern.strip(), name, re.IGNORECASE) for pattern in re.split(r"(?<!\\),", patterns)
        )
    except re.error:  # Java's syntax has more
        return None


def faults_of_added(table: SeenTable, added: Mapping[str, object]) -> Iterator[CapturedFinding]:
    """Yields the columns, declared as added later, of which rows from before have another value than said.

    The value, None for NULL, is by the name of the column.
    """
    for column in (each for each in table.columns if each.name in added):
        value, name = added[column.name], _in_condition(column)
        is_other = f"{name} IS NOT NULL" if value is None else f"{name}::text IS DISTINCT FROM %s"
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        text = f"rows from before it was added or renamed have another value than {value!r}"
        condition = f"{is_other} AND age(xmin) >= age(%s::text::xid)"
        parameters = (*(() if value is None else (shown,)), column.changed)
        yield _unwritten(table, column, text.replace("None", "NULL"), condition, parameters)


def changes_between(
    before: SeenTable, now: SeenTable, present: Mapping[int, str] = {}, added: Collection[str] = ()
) -> Iterator[CapturedFinding]:
    """Yields what happened to a table between two examinations without producing events.

    New columns that are declared as `added` later are passed over (:func:`faults_of_added`).
    """
    if not before.oid:
        return
    if now.oid != before.oid:
        name = present.get(before.oid)
        fate = "it was dropped" if name is None else f"it was renamed to {name}"
        again = ", and another table has its name now" if now.oid else ""
        yield _found(now, f"{fate}{again}; the rows that it had remain in the topics", _NEW_TOPICS)
        return
    if before.named != now.named and before.owner == now.owner:
        text = "it had another name or schema for some time; changes in this time are in another topic"
        yield _found(now, text, _NEW_TOPICS)
    if before.member and now.member and before.member != now.member:
        text = "it was removed from the publication for some time; changes in this time are missing"
        yield _found(now, text, _NEW_TOPICS)
    if before.options and now.options and before.options != now.options:
        text = "the options of the publication were changed; what it did not publish in between is missing"
        yield _found(now, text, _NEW_TOPICS)
    if before.key != now.key:
        text = "its primary key was changed; earlier records have the former key"
        yield _found(now, text, _NEW_TOPICS)
    if before.identity == "f" != now.identity:
        text = "its REPLICA IDENTITY is no longer FULL, so changes lack former values"
        yield _found(now, text, "ALTER TABLE … REPLICA IDENTITY FULL, and begin a new revision")
    if before.file != now.file and before.columns == now.columns:
        text = (
            "all its rows were rewritten, as SET UNLOGGED and SET LOGGED do; changes in between are missing"
        )
        proof = Proof(now.quoted, "xmin = %s::text::xid", (now.changed,))
        yield _found(now, text, _NEW_TOPICS, proof=proof)
    yield from _partition_changes(before, now, present)
    yield from _column_changes(before, now, added)


def absent_columns(before: SeenTable, now: SeenTable, used: Collection[str]) -> Iterator[CapturedFinding]:
    """Yields the columns that views use and that a table does not have, or no longer has."""
    names = {column.number: column.name for column in now.columns}
    earlier = {column.name: column.number for column in before.columns if before.oid == now.oid}
    for name in sorted(set(used) - set(names.values())) if now.oid else ():
        fate = "the database has no such column"
        if name in earlier:
            renamed = names.get(earlier[name])
            fate = "it was dropped" if renamed is None else f"it was renamed to {renamed}"
        hint = f"adapt the views and the declaration (`slackwater schema pull`); {_NEW_TOPICS}"
        yield _found(now, f"column {name}: {fate}", hint, name)


def _partition_changes(
    before: SeenTable, now: SeenTable, present: Mapping[int, str]
) -> Iterator[CapturedFinding]:
    earlier = {each.oid: each for each in before.partitions}
    known = [each for each in now.partitions if each.oid in earlier]
    for each in now.partitions:
        if each.oid not in earlier:
            yield _attached(now, each)
        elif _link(each) != _link(earlier[each.oid]):
            text = (
                f"its partition {each.name} was detached for some time, without events of what changed then"
            )
            yield _found(now, text, _NEW_TOPICS)
    emptied = [each for each in known if each.file != earlier[each.oid].file and each.is_uncounted]
    is_whole = len(emptied) == len(before.partitions) > 1 and len({each.changed for each in emptied}) == 1
    for each in () if is_whole else emptied:  # TRUNCATE of the table empties all in one transaction
        text = f"its partition {each.name} was truncated by itself, without an event"
        yield _found(now, text, f"TRUNCATE the whole table, or DELETE rows instead; now {_NEW_TOPICS}")
    for oid in earlier.keys() - {each.oid for each in known}:
        yield _removed(now, earlier[oid], present.get(oid))


def _link(partition: SeenPartition) -> tuple[str, int]:
    return partition.attached, partition.attached_command


def _attached(table: SeenTable, partition: SeenPartition) -> CapturedFinding:
    condition = "age(xmin) > age(%s::text::xid) OR (xmin = %s::text::xid AND cmin::text::bigint < %s)"
    attached = (partition.attached, partition.attached, partition.attached_command)
    text = f"{partition.name} was attached with rows, which have no events"
    hint = _TOUCH.format(table=partition.name, column="…")
    return _found(table, text, hint, proof=Proof(partition.name, condition, attached))


def _removed(table: SeenTable, partition: SeenPartition, name: str | None) -> CapturedFinding:
    fate = "dropped" if name is None else "detached"
    text = f"its partition {partition.name} was {fate}; if it had rows, their removal has no events"
    hint = "DELETE the rows of a partition first, then detach it, and drop it after the next check; now "
    return _found(table, text, hint + _NEW_TOPICS, proof=None if name is None else Proof(name, "true", ()))


def _column_changes(before: SeenTable, now: SeenTable, added: Collection[str]) -> Iterator[CapturedFinding]:
    earlier = {each.name: each for each in before.columns}
    names = {each.number: each.name for each in now.columns}
    was_rewritten = before.file != now.file or _files(before) != _files(now)
    for column in now.columns:
        known = earlier.get(column.name)
        if known is None and column.name in added:
            continue
        if known is None:
            text, name = "rows that existed before have its DEFAULT", _in_condition(column)
            yield _unwritten(now, column, text, f"{name} IS NOT NULL AND age(xmin) >= age(%s::text::xid)")
        elif known.number != column.number:
            renamed = names.get(known.number)
            text = "it was dropped and added again"
            if renamed is not None:
                text = f"it was renamed to {renamed}, and another column has its name now"
            yield _unwritten(now, column, text, "age(xmin) >= age(%s::text::xid)")
        elif (known.type, column.type) in _WIDER:
            text = f"ALTER COLUMN … TYPE {column.type} rewrote its values"
            yield _unwritten(now, column, text, "xmin = %s::text::xid")
        elif _form(known) != _form(column):
            text = f"column {column.name}: its type was changed from {known.type} to {column.type}"
            hint = f"adapt the declaration (`slackwater schema pull`); {_NEW_TOPICS}"
            yield _found(now, text, hint, column.name)
        elif known.changed != column.changed and was_rewritten:
            yield _unwritten(now, column, "ALTER COLUMN … TYPE rewrote its values", "xmin = %s::text::xid")
        else:
            yield from _renamed_labels(now, known, column)


def _form(column: SeenColumn) -> tuple[int, str]:
    """Returns what a column's values in records depend on: for times also the number of digits."""
    is_time = column.type.startswith("time")
    oid = _TEXT if column.type_oid == _VARCHAR else column.type_oid
    return oid, column.type if is_time else ""


def _renamed_labels(table: SeenTable, known: SeenColumn, column: SeenColumn) -> Iterator[CapturedFinding]:
    name = _in_condition(column)
    for oid, (label, changed) in column.labels.items():
        was = known.labels.get(oid, (label, ""))[0]
        if was != label:
            text = f"label {was!r} of type {column.type} was renamed to {label!r}"
            has_label = f"ARRAY[{name}]::text[] @> ARRAY[%s] AND age(xmin) >= age(%s::text::xid)"
            yield _unwritten(table, column, text, has_label, (label, changed))


def _unwritten(
    table: SeenTable, column: SeenColumn, text: str, condition: str, parameters: tuple[str, ...] = ()
) -> CapturedFinding:
    text = f"column {column.name}: {text}, without events"
    hint = f"{_TOUCH.format(table=table.quoted, column=_quoted(column.name))}, and begin a new revision"
    proof = Proof(table.quoted, condition, parameters or (column.changed,))
    return _found(table, text, hint, column.name, proof)


def _found(
    table: SeenTable, text: str, hint: str, column: str = "", proof: Proof | None = None
) -> CapturedFinding:
    return CapturedFinding(table=table.name, column=column, text=text, hint=hint, proof=proof)


def _files(table: SeenTable) -> dict[int, int]:
    return {each.oid: each.file for each in table.partitions}


def _in_condition(column: SeenColumn) -> str:
    return _quoted(column.name).replace("%", "%%")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
