"""What is left of a revision that nobody reads any more, and its removal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from slackwater.pipeline_outputs import tables_url
from slackwater_command.conversion import kafka_settings
from slackwater_command.errors import CommandInputError
from slackwater_command.settings import Settings
from slackwater_control import KnownRun
from slackwater_protocol import PipelineRegistration
from slackwater_protocol.keys import commit_topic, progress_topic

_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Remains:
    """What belongs to a revision alone."""

    topics: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    """In PostgreSQL, ``schema.name``."""
    by_hand: tuple[str, ...] = ()
    """What only you can remove: a sentence each."""

    def lines(self) -> Iterator[str]:
        """Yields a line for each of them, for people."""
        yield from (f"topic    {name}" for name in self.topics)
        yield from (f"table    {name}" for name in self.tables)
        yield from (f"by hand  {text}" for text in self.by_hand)


def check_retirable(
    runs: Sequence[KnownRun], number: int, read: Sequence[str], now_ms: int, age: timedelta
) -> PipelineRegistration:
    """Returns a revision that may be removed.

    Args:
        runs: The last run of each revision of the pipeline.
        number: Of the revision.
        read: The pipelines that readers were switched to.
        now_ms: The time, milliseconds since the epoch.
        age: So long ago its last run has to have been heard of.

    Raises:
        CommandInputError: It may not, and why; nothing was removed.
    """
    found = {run.registration.revision: run for run in runs}
    if number not in found:
        known = ", ".join(map(str, sorted(found))) or "none"
        raise CommandInputError(f"there is no revision {number}; registered: {known}", "nothing was removed")
    run = found[number]
    name = run.registration.pipeline
    if len(found) == 1:
        raise CommandInputError(
            f"{name!r} is the only revision of its pipeline",
            "what another revision has replaced is removed here; the last one is removed by hand",
        )
    if run.holds_name(now_ms):
        raise CommandInputError(
            f"{name!r} runs on {run.registration.host} (process {run.registration.pid})",
            "stop it first; one that was killed can be retired a minute later",
        )
    if name in read:
        raise CommandInputError(
            f"readers were switched to {name!r}",
            "switch them to another revision first: slackwater revise switch",
        )
    silent = timedelta(milliseconds=now_ms - run.heard_ms)
    if silent < age:
        raise CommandInputError(
            f"{name!r} was last heard of {silent.total_seconds():,.0f} s ago, and is kept for "
            f"{age.total_seconds():,.0f} s",
            "wait, or give a shorter --keep-for",
        )
    return run.registration


def find_remains(settings: Settings, registration: PipelineRegistration) -> Remains:
    """Finds what is left of a revision; what was removed before is not in it.

    Raises:
        CommandConfigError: Nothing says where its outputs are.
    """
    kinds = {view.kind for view in registration.views}
    by_hand = [f"the checkpoint {registration.checkpoint}"]
    topics: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    if "kafka" in kinds:
        topics = tuple(_existing_topics(settings, _topics_of(registration)))
    if "postgres" in kinds:
        tables = tuple(_existing_tables(settings, registration))
    by_hand += [
        f"table {view.output} of the lake ({view.kind})"
        for view in registration.views
        if view.kind in ("delta", "iceberg")
    ]
    return Remains(topics, tables, tuple(by_hand))


def remove(settings: Settings, registration: PipelineRegistration, remains: Remains) -> None:
    """Removes topics and tables; what is gone already is passed over.

    Raises:
        CommandInputError: PostgreSQL refuses, since something depends on a table; no table was removed then.
        KafkaException: Kafka refuses or does not answer; part of the topics may be gone. Ask again.
    """
    if remains.topics:
        from confluent_kafka.admin import AdminClient

        kafka = kafka_settings(settings, "where the output is")
        admin = AdminClient({**kafka.client_config})
        for answer in admin.delete_topics([*remains.topics], request_timeout=_SECONDS).values():
            answer.result(_SECONDS)
    if remains.tables:
        _drop_tables(settings, registration, remains.tables)


def _topics_of(registration: PipelineRegistration) -> Iterator[str]:
    for view in registration.views:
        if view.kind == "kafka":
            yield from (view.output, commit_topic(view.output))
    yield progress_topic(registration.pipeline)


def _existing_topics(settings: Settings, wanted: Iterator[str]) -> Iterator[str]:
    from confluent_kafka.admin import AdminClient

    kafka = kafka_settings(settings, "where the output is")
    known = AdminClient({**kafka.client_config}).list_topics(timeout=_SECONDS).topics
    yield from (name for name in wanted if name in known)


def _existing_tables(settings: Settings, registration: PipelineRegistration) -> Iterator[str]:
    import psycopg

    query = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = %s"
    with psycopg.connect(tables_url(settings, registration.pipeline)) as database:
        for view in registration.views:
            for name in (view.output, f"{view.output}_history"):
                schema, _, table = name.rpartition(".")
                if database.execute(query, (schema, table)).fetchone():
                    yield name


def _drop_tables(settings: Settings, registration: PipelineRegistration, tables: Sequence[str]) -> None:
    """Drops all tables and the pipeline's rows of the ledger, in one transaction."""
    import psycopg
    from psycopg import sql

    try:
        with psycopg.connect(tables_url(settings, registration.pipeline)) as database:
            for name in tables:
                schema, _, table = name.rpartition(".")
                database.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, table)))
            for ledger in ("slackwater.ledger_tables", "slackwater.ledger"):
                query = sql.SQL("DELETE FROM {} WHERE pipeline = %s").format(
                    sql.Identifier(*ledger.split("."))
                )
                database.execute(query, (registration.pipeline,))
    except psycopg.errors.DependentObjectsStillExist as error:
        raise CommandInputError(
            f"PostgreSQL keeps the tables: {error.diag.message_detail or error.diag.message_primary}",
            "remove or change what reads them; no table was removed",
        ) from error
