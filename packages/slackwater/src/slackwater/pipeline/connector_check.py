"""Whether the connector of a source writes values and rows in the form in which a pipeline reads them.

JSON without schemas does not state the form; the connector's configuration does. A run learns it from Kafka
Connect, if its address is configured, otherwise from what the sidecar has learnt.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Final

from slackwater.cdc import UndecodableRecordError
from slackwater.cdc.captured import omitted_by, subject_of
from slackwater.cdc.connector import CONNECTOR_HINT, property_findings
from slackwater.cdc.envelope import decode_full_row
from slackwater.cuts import RedisMarkerStore
from slackwater.engine.settings import FormProof
from slackwater.observe.repeating import Repeating
from slackwater.outputs.contract import REQUEST_TIMEOUT
from slackwater.pipeline.definition import PipelineDefinition, used_columns
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
    Verdict,
)
from slackwater.sql.catalog import Column, Table

LOOK_SECONDS: Final = 3.0
"""The time between two looks."""
_TIMEOUT: Final = timedelta(seconds=5)

AskConnect = Callable[[str], Mapping[str, str] | None]
"""Returns the configuration of the connector that writes a source; None: there is no such connector. Blocks;
raises a SlackwaterError if Kafka Connect does not answer."""

_log = logging.getLogger(__name__)
_SHOWN_COLUMNS: Final = 5


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


def may_have_connector(
    kafka: KafkaSettings,
    topics: Collection[str],
    pause: Callable[[float], None] = time.sleep,
    *,
    may_be_empty: bool = True,
) -> bool:
    """Returns whether one of these topics begins with a record that a connector may have written.

    Args:
        kafka: The source's cluster.
        topics: The topics of the tables.
        pause: Waits for this many seconds; an error that it raises ends the wait for Kafka.
        may_be_empty: Whether topics without records have none, because tasks see who wrote each later one.

    Raises:
        StateError: A topic is gone. UnavailableError: Kafka does not answer.
    """
    found = list(map(_is_own, first_values(kafka, topics, REQUEST_TIMEOUT, pause)))
    return not (all(found) and (found or may_be_empty))


def prove_forms(options: SourceOptions, table: Table, *, sees_writers: bool) -> FormProof:
    """Returns what proves the form of a table's values, for frames, which have no run that watches.

    Args:
        options: How the source is read.
        table: The table.
        sees_writers: Whether tasks see who wrote each record.

    Raises:
        InputError: The connector writes other values or rows than the database has.
        ConfigError: Nobody knows the connector, and a column needs its configuration.
        StateError: The topic is gone. UnavailableError: Kafka does not answer.
    """
    used = {table.full_name: [column.name for column in table.columns]}
    check = ConnectorCheck(options.source, None, options.servers.redis, used, options.connect_properties)
    check.look()
    check.check()
    if check.is_known:
        return FormProof.CONFIGURATION
    topics = [options.source_topics.data(table.full_name)]
    if not may_have_connector(options.servers.kafka, topics, may_be_empty=sees_writers):
        return FormProof.WRITER
    refuse_unknown_connector((table, column) for column in table.columns)
    return FormProof.VALUES


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


class ConnectorCheck:
    """Looks at the configuration of a source's connector, at first when asked, then every few seconds.

    A thread looks; :meth:`check` refuses what it saw, in the thread of the caller.

    Args:
        source: The connector's ``topic.prefix``.
        ask_connect: Asks Kafka Connect; None if it is not known where that is.
        redis: Where the sidecar tells what it has learnt; None if there is no Redis.
        used: The tables that the pipeline reads, with the columns of each that it needs.
        declared: The configuration that counts as long as nobody has known it; empty if there is none.
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
        self._looks = Repeating("connector-check", self.look, LOOK_SECONDS)

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
            found = (*found, *self._omitted(properties))
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
        for first in self._faults:
            others = len(self._faults) - 1
            more = f" (and {others} more; `slackwater run --dry-run` lists them)" if others else ""
            text = f"the connector of source {self._source} must not be read: {first.subject}: {first.text}"
            raise InputError(text + more, first.hint)

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

    def _omitted(self, properties: Mapping[str, str]) -> Iterator[Finding]:
        for each in omitted_by(properties, self._used):
            yield Finding(each.subject, Verdict.FAULT, each.text, each.hint)
