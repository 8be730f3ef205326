"""Whether the tables that a pipeline reads are whole in their topics, and in the form in which it reads them.

The catalogue of the database shows the former. A run compares it with what it was when the pipeline began, as
the checkpoint has it, because some statements change rows without any event. The configuration of the
connector determines the latter, which JSON without schemas does not state. A run learns it from Kafka
Connect, if its address is configured, otherwise from what the sidecar has learnt.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Final

import msgspec
import psycopg

from slackwater.cdc import UndecodableRecordError
from slackwater.cdc.captured import CapturedFinding, DeclaredTable, SeenTable, omitted_by, subject_of
from slackwater.cdc.catalogue import examine_tables, find_publication
from slackwater.cdc.connector import CONNECTOR_HINT, property_findings
from slackwater.cdc.envelope import decode_full_row
from slackwater.cuts import RedisMarkerStore
from slackwater.engine.settings import FormProof
from slackwater.observe.repeating import Repeating
from slackwater.outputs.contract import REQUEST_TIMEOUT
from slackwater.pipeline.checkpoint import CATALOGUE_FILE, Checkpoint
from slackwater.pipeline.definition import PipelineDefinition, needed_columns, table_inputs, used_columns
from slackwater.pipeline.settings import RunSettings
from slackwater.pipeline.source.kafka_reader import first_values
from slackwater.pipeline.source.options import SourceOptions
from slackwater.protocol import (
    ConfigError,
    ConnectorReport,
    Finding,
    InputError,
    KafkaSettings,
    RedisSettings,
    SlackwaterError,
    SourceTopics,
    Verdict,
    hide,
)
from slackwater.sql.catalog import Column, Table

CATALOGUE_SECONDS: Final = 5.0
"""The time between two looks at the catalogue."""
CONNECTOR_SECONDS: Final = 3.0
"""The time between two looks at the connector."""
_CONNECT_SECONDS: Final = 5
_TIMEOUT: Final = timedelta(seconds=5)
_SHOWN_COLUMNS: Final = 5

AskConnect = Callable[[str], Mapping[str, str] | None]
"""Returns the configuration of the connector that writes a source; None: there is no such connector. Blocks;
raises a SlackwaterError if Kafka Connect does not answer."""

_log = logging.getLogger(__name__)


def tables_without_topic(
    tables: Iterable[str], topics: SourceTopics, known: Collection[str]
) -> dict[str, tuple[str, str]]:
    """Returns the problem and a hint for each of these tables whose topic does not exist.

    The connector creates a topic with the first row, so a new table has none. But the changes of a
    partitioned table may be in topics of its partitions, whose names usually begin with the name of the
    table.
    """
    named = {table: topics.data(table) for table in tables}
    others = sorted(set(known).difference(named.values()))
    found = {}
    for table, topic in named.items():
        if topic not in known:
            hint = (
                "the connector creates the topic with the table's first row; if the table is still empty, "
                "allow this with --allow-missing-tables. Otherwise check the connector's table.include.list "
                "and its publication; a partitioned table needs publish_via_partition_root"
            )
            if partitions := [other for other in others if other.startswith(topic)]:
                hint += f". These topics may belong to its partitions: {', '.join(partitions)}"
            found[table] = f"there is no topic {topic}", hint
    return found


def _refuse(what: str, found: Sequence[Finding], count: int) -> None:
    """Raises InputError if something was found; `count` things were."""
    if found:
        first = found[0]
        more = f" (and {count - 1} more; `slackwater run --dry-run` lists them)" if count > 1 else ""
        raise InputError(f"{what}: {first.subject}: {first.text}{more}", first.hint)


class _Kept(msgspec.Struct, frozen=True):
    """What the checkpoint has of the catalogue."""

    tables: Mapping[str, SeenTable] = {}
    """The tables as they were when nothing was wrong with them."""
    findings: tuple[CapturedFinding, ...] = ()
    """What was wrong at some look, and what no later look can disprove."""


class CatalogueCheck:
    """Looks at the catalogue of a source's database, at first when asked, then every few seconds.

    A thread looks; :meth:`check` keeps what it saw, in the thread of the caller. Without the address of a
    database, nothing is ever found. The user is that of the connector, for row-level security; empty if it is
    not known.
    """

    def __init__(
        self, definition: PipelineDefinition, database: str | None, user: str, checkpoint: Checkpoint
    ) -> None:
        self._name, self._source = definition.name, definition.source
        self._topics = definition.source_topics
        self._used: Mapping[str, Collection[str]] = used_columns(definition.plan)
        self._declared = {
            each.table.full_name: DeclaredTable(each.table.primary_key)
            for each in table_inputs(definition.plan)
        }
        self._added: dict[str, dict[str, object]] = {}
        for table, column in needed_columns(definition.plan):
            if column.was_added:
                self._added.setdefault(table.full_name, {})[column.name] = column.absent
        self._database, self._user = database, user
        self._checkpoint = checkpoint
        self._seen: tuple[Mapping[str, SeenTable], list[CapturedFinding]] | None = None
        self._kept = _Kept()
        self._written: _Kept | None = None
        """What the pipeline's own checkpoint has; a copied state begins with what its origin kept."""
        self._looks = Repeating("catalogue-check", self._look_again, CATALOGUE_SECONDS)
        self._is_away = False

    def first_look(self, *copied: Checkpoint) -> tuple[CapturedFinding, ...]:
        """Looks now, and returns what is wrong; nothing is written.

        Raises:
            UnavailableError: The checkpoint's store does not answer.
            psycopg.Error: The database does not answer.
        """
        kept = self._written = _read(self._checkpoint)
        if kept is None:
            before = [each for each in map(_read, copied) if each is not None]
            tables = {name: seen for each in before for name, seen in each.tables.items()}
            kept = _Kept(tables, tuple(finding for each in before for finding in each.findings))
        self._kept = kept
        self._look(
            {
                name: declared._replace(added=self._added.get(name, {}))
                for name, declared in self._declared.items()
            }
        )
        found = () if self._seen is None else tuple(self._seen[1])
        return (*self._kept.findings, *(each for each in found if each not in self._kept.findings))

    def begin(self) -> None:
        """Begins to look every few seconds, in a thread."""
        if self._database is not None:
            self._looks.begin()

    def check(self) -> None:
        """Keeps what was seen since the last call; returns quickly if that is nothing new.

        Raises:
            InputError: Rows of a table are not all in its topic.
        """
        seen, self._seen = self._seen, None
        if seen is None:
            return
        tables, found = seen
        lasting = (each for each in found if each.proof is None and each not in self._kept.findings)
        kept = _Kept(tables, (*self._kept.findings, *lasting))
        if kept != self._written:
            self._checkpoint.store.write(CATALOGUE_FILE, msgspec.json.encode(kept))
            self._kept = self._written = kept
        self.refuse([*kept.findings, *found])

    def refuse(self, found: Collection[CapturedFinding]) -> None:
        """Raises InputError if something was found."""
        what = f"pipeline {self._name!r} stops"
        _refuse(what, table_findings(found), len({each.text for each in found}))

    def warn(self, error: psycopg.Error) -> None:
        """Logs, once, that the database does not answer."""
        if not self._is_away:
            reason = hide(" ".join(str(error).split()), (self._database or "",))
            _log.warning("the catalogue of source %s cannot be read: %s", self._source, reason)
        self._is_away = True

    def close(self) -> None:
        """Ends the thread, unless it waits for the database. Idempotent."""
        self._looks.close(_CONNECT_SECONDS)

    def _look_again(self) -> None:
        try:
            self._look()
            self._is_away = False
        except psycopg.Error as error:
            self.warn(error)

    def _look(self, declared: Mapping[str, DeclaredTable] | None = None) -> None:
        if self._database is None:
            return
        with psycopg.connect(self._database, connect_timeout=_CONNECT_SECONDS, autocommit=True) as connection:
            tables, found = examine_tables(
                connection,
                self._used,
                self._kept.tables,
                topics=self._topics,
                publication=find_publication(connection, self._source),
                user=self._user,
                declared=self._declared if declared is None else declared,
            )
        if self._kept.tables or any(table.oid for table in tables.values()):
            self._seen = tables, found
        elif not self._is_away:
            self._is_away = True
            _log.warning("postgres.url is no database of source %s: it has none of the tables", self._source)


def _read(checkpoint: Checkpoint) -> _Kept | None:
    data = checkpoint.store.read(CATALOGUE_FILE)
    return None if data is None else msgspec.json.decode(data, type=_Kept)


def table_findings(found: Iterable[CapturedFinding]) -> list[Finding]:
    """Returns what the catalogue shows of tables, each as a problem."""
    return [Finding(f"table {each.table}", Verdict.PROBLEM, each.text, each.hint) for each in found]


class ConnectorCheck:
    """Looks at the configuration of a source's connector, at first when asked, then every few seconds.

    A thread looks; :meth:`check` refuses what it saw, in the thread of the caller. Kafka Connect is asked, or
    else the sidecar by way of Redis. `used` has the columns that the pipeline needs, by table. The `declared`
    configuration counts as long as nobody has known it.
    """

    def __init__(
        self,
        source: str,
        ask_connect: AskConnect | None,
        redis: RedisSettings | None,
        used: Mapping[str, Collection[str]] = {},
        declared: Mapping[str, str] = {},
    ) -> None:
        self._source = source
        self._ask_connect = ask_connect
        self._redis = redis
        self._used = used
        self._declared = declared if declared.get("topic.prefix", source) == source else {}
        self._subjects = {subject_of(table) for table in used} | {
            subject_of(table, column) for table, columns in used.items() for column in columns
        }
        self._faults: list[Finding] = []
        self.is_known = False
        """Whether anybody has known the connector's configuration, or it is declared."""
        self.refusal = ""
        """Why the sidecar publishes no further cut, as it said last; empty: it does, or it was not asked."""
        self._looks = Repeating("connector-check", self.look, CONNECTOR_SECONDS)

    @classmethod
    def of_run(cls, definition: PipelineDefinition, settings: RunSettings) -> "ConnectorCheck":
        """Returns the check for a run of a pipeline."""
        used, redis = used_columns(definition.plan), settings.servers.redis
        return cls(definition.source, settings.ask_connect, redis, used, settings.connector_properties)

    def look(self) -> list[Finding]:
        """Returns what makes views wrong, as far as anybody knows, and sets :attr:`is_known`.

        Blocks; never raises.
        """
        report = self._ask_sidecar()
        properties, found = self._properties(), tuple[Finding, ...]()
        if properties is not None:
            found = tuple(property_findings(properties))
        elif report is not None:
            properties, found = report.properties or None, report.findings
        if properties is None and self._declared and not self.is_known:
            properties, found = self._declared, (*property_findings(self._declared), *found)
        if properties is not None:
            self.is_known = True
            omitted = omitted_by(properties, self._used)
            found += tuple(Finding(each.subject, Verdict.FAULT, each.text, each.hint) for each in omitted)
        if properties is not None or found:
            self._faults = [f for f in found if f.verdict is Verdict.FAULT or f.subject in self._subjects]
        return self._faults

    def begin(self) -> None:
        """Begins to look every few seconds, in a thread."""
        if self._ask_connect is not None or self._redis is not None:
            self._looks.begin()

    def check(self) -> None:
        """Returns at once if the last look found nothing.

        Raises:
            InputError: Views would show other values or other rows than the database has.
        """
        what = f"the connector of source {self._source} must not be read"
        _refuse(what, self._faults, len(self._faults))

    def prove(
        self,
        kafka: KafkaSettings,
        topics: Collection[str],
        needed: Iterable[tuple[Table, Column]],
        *,
        pause: Callable[[float], None] = time.sleep,
        may_be_empty: bool = True,
    ) -> FormProof:
        """Returns what proves the form of values in the needed columns, after a look.

        An error that `pause` raises ends the wait for Kafka. With `may_be_empty`, topics without records have
        none of a connector, because tasks see who wrote each later one.

        Raises:
            ConfigError: Nobody knows the connector, and a column needs its configuration.
            StateError: A topic is gone. UnavailableError: Kafka does not answer.
        """
        if self.is_known:
            return FormProof.CONFIGURATION
        found = list(map(_is_own, first_values(kafka, topics, REQUEST_TIMEOUT, pause)))
        if all(found) and (found or may_be_empty):
            return FormProof.WRITER
        refuse_unknown_connector(needed)
        return FormProof.VALUES

    def close(self) -> None:
        """Ends the thread. Idempotent."""
        self._looks.close()

    def _properties(self) -> Mapping[str, str] | None:
        if self._ask_connect is None:
            return None
        try:
            return self._ask_connect(self._source)
        except SlackwaterError as error:
            _log.debug("the connector of source %s cannot be read: %s", self._source, error)
            return None

    def _ask_sidecar(self) -> ConnectorReport | None:
        if self._redis is None:
            return None
        try:
            store = RedisMarkerStore.connect(self._redis.url, password=self._redis.password, timeout=_TIMEOUT)
            with closing(store):
                status = store.status(self._source)
        except SlackwaterError as error:
            _log.debug("the sidecar of source %s cannot be asked: %s", self._source, error)
            return None
        self.refusal = status.detail if status is not None and status.state.is_refusal else ""
        return None if status is None else status.connector


def refuse_unknown_connector(needed: Iterable[tuple[Table, Column]]) -> None:
    """Does nothing if columns can be read although nobody knows the connector's configuration.

    Raises:
        ConfigError: In one of them, one value may stand for another, as no record shows.
    """
    needed = list(needed)
    reasons = (
        (
            [(table, each) for table, each in needed if each.nullable and each.has_default],
            "has a DEFAULT, which the connector may have written instead of NULL",
        ),
        (
            [
                (table, each)
                for table, each in needed
                if each.type.may_be_unavailable and not table.replica_identity_full
            ],
            "may be stored out of line (TOAST): the connector writes a placeholder for a value that a change "
            "leaves as it is, and unavailable.value.placeholder may be another one than Debezium's own",
        ),
    )
    found = [f"{_listed(columns)} {reason}" for columns, reason in reasons if columns]
    if found:
        raise ConfigError(f"the connector's configuration is not known: {'; '.join(found)}", CONNECTOR_HINT)


def prove_forms(options: SourceOptions, table: Table, *, sees_writers: bool) -> FormProof:
    """Returns what proves the form of a table's values, for frames, which have no run that watches.

    Raises:
        InputError: The connector writes other values or rows than the database has.
        ConfigError, StateError, UnavailableError: As for :meth:`ConnectorCheck.prove`.
    """
    used = {table.full_name: [column.name for column in table.columns]}
    check = ConnectorCheck(options.source, None, options.servers.redis, used, options.connect_properties)
    check.look()
    check.check()
    topics = [options.source_topics.data(table.full_name)]
    needed = ((table, column) for column in table.columns)
    return check.prove(options.servers.kafka, topics, needed, may_be_empty=sees_writers)


def _is_own(value: bytes) -> bool:
    try:
        return decode_full_row(value).source.is_own
    except UndecodableRecordError:
        return False


def _listed(columns: Sequence[tuple[Table, Column]]) -> str:
    more = f" (and {len(columns) - _SHOWN_COLUMNS} more)" if len(columns) > _SHOWN_COLUMNS else ""
    each = "column" if len(columns) == 1 else "each of columns"
    names = (f"{table.full_name}.{column.name}" for table, column in columns[:_SHOWN_COLUMNS])
    return f"{each} {', '.join(names)}{more}"
