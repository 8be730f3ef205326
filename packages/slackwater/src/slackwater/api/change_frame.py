"""The row-level source: changes of database tables for any Spark code."""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypedDict, Unpack

import orjson
from pyspark.sql import DataFrame, SparkSession

from slackwater.engine.settings import FormProof
from slackwater.pipeline.source.data_source import FORMAT
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.typed_rows import TypedTable, typed_frame, unsupported_columns
from slackwater.pipeline.source_check import prove_forms
from slackwater.protocol import ConfigError
from slackwater.protocol.keys import quoted_table, table_name
from slackwater.sql.catalog import Catalog, Table
from slackwater.sql.postgres import parse_catalog
from slackwater.sql.row_codec import in_unknown_forms

Schema = str | Path | Catalog
"""CREATE TABLE text, the path of a file with such text or of a folder of ``*.sql`` files, or a catalog."""

_DDL = re.compile(r"\bcreate\s+(table|type|domain)\b", re.IGNORECASE)


class ChangesOptions(TypedDict, total=False):
    """Further options of :func:`changes`; each is an option of ``format("slackwater")``."""

    topics: Mapping[str, str]
    """The topic of each table whose rows a transform of the connector routes to another topic than usual."""
    connect_properties: Mapping[str, str]
    """The connector's configuration, for views and typed rows: like ``[connect.properties]`` of
    ``slackwater.toml``, it counts if Redis does not say it."""
    redis_password: str
    schema_registry: str
    """The address of the schema registry, if the topics are in Avro."""
    schema_registry_user: str
    schema_registry_password: str
    timeline: int
    """The timeline of the source's LSNs; 1 unless they have started over."""
    starting: Literal["earliest", "latest"]
    """Where a query without a checkpoint starts."""
    allow_truncated_start: bool
    """Whether to begin with what is left of truncated topics; only without a checkpoint."""
    max_events_per_batch: int
    parallelism: int
    """The number of tasks of a large batch; by default the number of cores."""
    min_task_events: int
    target_task_events: int
    read_timeout_ms: int
    kafka: Mapping[str, str]
    """Further librdkafka settings, e.g. ``{"sasl.password": ...}``."""


_DOTTED = {
    "redis_password": "redis.password",
    "schema_registry_user": "schema_registry.user",
    "schema_registry_password": "schema_registry.password",
}


@dataclass(frozen=True)
class Changes:
    """Changes of a source's tables, in whole transactions; created by :func:`changes`.

    Each frame reads separately. Use only one frame within a query, because two frames may be at different
    commits.
    """

    session: "SparkSession" = field(repr=False)
    options: SourceOptions
    """The checked options; they are printed without secrets."""
    catalog: Catalog | None = field(repr=False)
    streaming: bool
    """Whether frames are streams. Otherwise they end at the newest cut at the time of their evaluation."""
    spark_options: Mapping[str, str] = field(repr=False)
    """The options of ``format("slackwater")``; they may contain secrets."""
    _proofs: dict[tuple[str, bool], FormProof] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """What proves the forms of each table's values, by whether tasks see who wrote them."""

    @property
    def tables(self) -> tuple[str, ...]:
        """The full names of the tables that are read."""
        return self.options.tables

    def rows(self) -> "DataFrame":
        """Reads the changes of all tables, with rows as JSON.

        :data:`slackwater.pipeline.source.data_source.ROW_SCHEMA` lists the columns.
        """
        return self._load({})

    def table(self, name: str, *, as_text: Collection[str] = ()) -> "DataFrame":
        """Reads the changes of one declared table, with typed rows.

        The columns are those of :meth:`rows`, but ``key``, ``before`` and ``after`` are structs of the
        declared columns, with every value exactly as in the database. ``unchanged`` contains the names of
        columns that an update omitted (TOAST; they are null in ``after``), also in the insert with which the
        update of a primary key ends: they are those of the row that the delete before it removes.
        ``before`` contains only the key, unless the table has REPLICA IDENTITY FULL. A value that the Spark
        type cannot represent (an infinite timestamp, a year above 9999) ends the query with an error that
        names its topic, partition and offset.

        Args:
            name: ``schema.table``; other names quoted as in SQL: ``public."a.b"``.
            as_text: Columns to return as text instead: decimals of more than 38 digits, infinite times, types
                that Spark does not have.

        Raises:
            ConfigError: The table is not declared, or not read, or columns have no exact Spark type
                and are not in `as_text`; or nobody knows the connector's configuration, and a value of a
                column may stand for another because of it.
            InputError: The connector writes other values or rows than the database has.
        """
        typed = self._proven(self.typed_table(name, as_text=as_text), sees_writers=True)
        full_name = typed.table.full_name
        narrowed = {"tables": quoted_table(full_name), "typing": typed.to_json()}
        routed = {
            quoted_table(table): topic for table, topic in self.options.routed.items() if table == full_name
        }
        if self.options.routed:
            narrowed["topics"] = orjson.dumps(routed).decode()
        return self._load(narrowed)

    def typed(self, rows: "DataFrame", name: str, *, as_text: Collection[str] = ()) -> "DataFrame":
        """Selects the rows of one table from a frame of :meth:`rows`, typed as in :meth:`table`.

        Use it for batches that contain several tables: all frames that are derived from one batch contain the
        same transactions.

        Args:
            rows: A frame with the columns of :meth:`rows`.
            name: ``schema.table``; other names quoted as in SQL: ``public."a.b"``.
            as_text: As for :meth:`table`.

        Raises:
            ConfigError, InputError: As for :meth:`table`. Rows do not tell who wrote them, so a topic without
                records needs the connector's configuration, too.
        """
        typed = self._proven(self.typed_table(name, as_text=as_text), sees_writers=False)
        return typed_frame(rows, typed, self.options.source_topics.data(typed.table.full_name))

    def typed_table(self, name: str, *, as_text: Collection[str] = ()) -> "TypedTable":
        """Returns the declaration behind typed rows; see :meth:`table`."""
        table = find_table(self.catalog, name, self.tables)
        unknown = [column for column in as_text if table.column(column) is None]
        if unknown:
            columns = tuple(column.name for column in table.columns)
            raise _undeclared_table(name, f"has no column {unknown[0]!r}, which as_text names", columns)
        typed = TypedTable(table, tuple(as_text))
        inexact = unsupported_columns(typed)
        if inexact:
            reasons = "; ".join(f"{column.name} ({column.type}): {reason}" for column, reason in inexact)
            names = ", ".join(repr(column.name) for column, _ in inexact)
            problem = f"{name} has columns without an exact Spark type: {reasons}"
            raise ConfigError(problem, f"read them as text with as_text=[{names}]")
        return typed

    def _proven(self, typed: TypedTable, *, sees_writers: bool) -> TypedTable:
        asked = typed.table.full_name, sees_writers
        if asked not in self._proofs:  # a batch does not ask servers again
            self._proofs[asked] = prove_forms(self.options, typed.table, sees_writers=sees_writers)
        match self._proofs[asked]:
            case FormProof.VALUES:
                return replace(typed, table=in_unknown_forms(typed.table))
            case FormProof.WRITER:
                return replace(typed, takes_only_own=True)
            case FormProof.CONFIGURATION:
                return typed

    def _load(self, narrowed: Mapping[str, str]) -> "DataFrame":
        options = {**self.spark_options, **narrowed}
        if self.streaming:
            return self.session.readStream.format(FORMAT).options(**options).load()
        return self.session.read.format(FORMAT).options(**options).load()


def changes(
    session: "SparkSession",
    *,
    source: str,
    bootstrap: str,
    tables: Collection[str] | None = None,
    schema: Schema | None = None,
    redis_url: str | None = None,
    streaming: bool = True,
    **options: Unpack[ChangesOptions],
) -> Changes:
    """Reads changes of tables for any Spark code, in whole transactions and with each row's commit LSN.

    It reads what a sidecar has declared complete. A batch of a stream ends at a cut, so code that processes a
    batch never sees a part of a transaction. Batches can be read again from Kafka alone.

    Args:
        session: Any session whose workers have this package; see :func:`session_builder`.
        source: The connector's ``topic.prefix``.
        bootstrap: Kafka's ``bootstrap.servers``.
        tables: The tables as ``schema.table``, other names quoted as in SQL; None for all declared tables.
        schema: The declared tables, for typed rows: CREATE TABLE text, a path, or a catalog.
        redis_url: ``redis://host:port/db``, without a password. Without Redis, cuts are read from Kafka,
            which takes longer and is otherwise the same.
        streaming: False for finite frames, which contain everything up to the newest cut.
        options: See :class:`ChangesOptions`.

    Raises:
        ConfigError: An option cannot be used; the error names the first one.
        SqlTextError: The schema cannot be read; the error contains the position.
    """
    catalog = None if schema is None else declared_tables(schema)
    if tables is None and catalog is not None:
        tables = [quoted_table(table.full_name) for table in catalog.tables]
    options.setdefault("parallelism", session.sparkContext.defaultParallelism)
    spark_options = {"source": source, "bootstrap": bootstrap} | _as_text(options)
    if tables:
        spark_options["tables"] = ",".join(quoted_table(table_name(table)) for table in tables)
    if redis_url is not None:
        spark_options["redis_url"] = redis_url
    return Changes(session, SourceOptions.parse(spark_options), catalog, streaming, spark_options)


def _as_text(options: ChangesOptions) -> dict[str, str]:
    text: dict[str, str] = {}
    for name, value in options.items():
        if name == "kafka":
            text |= {f"kafka.{setting}": str(each) for setting, each in options["kafka"].items()}
        elif isinstance(value, Mapping):
            text[name] = orjson.dumps(dict(value)).decode()
        elif isinstance(value, bool):
            text[name] = str(value).lower()
        elif value is not None:
            text[_DOTTED.get(name, name)] = str(value)
    return text


def declared_tables(schema: Schema) -> Catalog:
    """Reads the tables that a schema declares.

    Args:
        schema: Text that contains CREATE TABLE is parsed; any other text is a path.

    Raises:
        SqlTextError: The text cannot be parsed; the error contains the position.
        FileNotFoundError: The file does not exist, or the folder has no ``*.sql`` file.
    """
    if isinstance(schema, Catalog):
        return schema
    if isinstance(schema, str) and _DDL.search(schema):
        return parse_catalog({"schema": schema})
    path = Path(schema)
    files = sorted(path.glob("*.sql")) if path.is_dir() else [path]
    if not files:
        msg = f"no *.sql file in {path}"
        raise FileNotFoundError(msg)
    return parse_catalog({str(file): file.read_text(encoding="utf-8") for file in files})


def find_table(catalog: Catalog | None, name: str, read: Collection[str]) -> Table:
    """Returns the declaration of a table, whose name may have quotes, as SQL writes it.

    Raises:
        ConfigError: The table is not declared, or not among those that are read.
    """
    tables = {table.full_name: table for table in catalog.tables} if catalog is not None else {}
    with suppress(ConfigError):
        name = table_name(name)
    if name not in tables:
        raise _undeclared_table(name, "is not declared", tuple(tables))
    if name not in read:
        raise _undeclared_table(name, "is not among the tables that are read", tuple(read))
    return tables[name]


def _undeclared_table(table: str, problem: str, known: Collection[str]) -> ConfigError:
    """Returns the error for a table or a column that is not declared or not read; it lists those that are."""
    listed = f"; known tables: {', '.join(known)}" if known else ""
    return ConfigError(
        f"table {table!r} {problem}{listed}",
        "declare tables with schema=, as CREATE TABLE statements, as the path of a file with them "
        "(`slackwater schema pull` writes one), or as a Catalog",
    )
