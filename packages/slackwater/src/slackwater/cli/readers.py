"""Which revision of a pipeline readers read, and the switch to another one, whatever its outputs are."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta

from slackwater.cli.pipeline_outputs import KINDS, open_lake, tables_url
from slackwater.cli.revisions import named_pipeline
from slackwater.client.switched import Switched
from slackwater.client.topic_switch import newest_switch, switch_topics
from slackwater.command.conversion import kafka_settings
from slackwater.control import PipelineState, Progress, Topology
from slackwater.protocol import InputError, PipelineRegistration
from slackwater.settings.errors import CommandConfigError, unknown
from slackwater.settings.model import Settings


def read_by(settings: Settings, pipeline: str, kind: str) -> Mapping[str, str]:
    """Returns what readers read: by where they do the pipeline with its revision. Empty: never switched.

    Args:
        settings: Say where outputs are.
        pipeline: The name without a revision.
        kind: Of its outputs.

    Raises:
        CommandConfigError: Nothing says where the outputs are.
        UnavailableError: A server does not answer.
    """
    if kind == "postgres":
        from slackwater.client.table_switch import schemas_of_readers

        found = schemas_of_readers(tables_url(settings, pipeline), pipeline)
        return {f"schema {schema}": read for schema, read in found.items()}
    if kind == "kafka":
        switch = newest_switch(kafka_settings(settings, "where the output is"), pipeline)
    else:
        from slackwater.client.lake_switch import newest_lake_switch

        with closing(open_lake(settings, kind, pipeline)) as lake:
            switch = newest_lake_switch(lake, pipeline)
    return {} if switch is None else {"topics" if kind == "kafka" else "lake": switch.pipeline}


def readers_of(settings: Settings, topology: Topology, name: str) -> dict[str, str]:
    """Returns what readers of a pipeline read, by where they do, for all kinds of its outputs.

    Args:
        settings: Say where outputs are.
        topology: Has the pipelines.
        name: Of the pipeline, without a revision.

    Raises:
        CommandConfigError: Nothing says where the outputs are.
        UnavailableError: A server does not answer.
    """
    kinds = {view.kind for node in topology.pipelines if node.base_name == name for view in node.views}
    found: dict[str, str] = {}
    for kind in sorted(kinds & set(KINDS)):
        found.update(read_by(settings, name, kind))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionStatus:
    """A revision of a pipeline: whether it runs, how far it is, and who reads it."""

    pipeline: str
    """The name with the revision."""
    revision: int
    state: PipelineState
    progress: Progress
    shows: str | None
    """The commit LSN of its newest batch; None: nothing is visible, as far as is known."""
    behind_ms: int | None
    """By how much that is older than the newest cut, milliseconds; None: not known."""
    caught_up_in_ms: int | None
    """When it will have caught up at the present rate; None if unknown, or never."""
    read_by: tuple[str, ...]
    """Which readers were switched to it."""


def revision_status(
    earlier: Topology, now: Topology, name: str, read: Mapping[str, str]
) -> tuple[RevisionStatus, ...]:
    """Returns the revisions of a pipeline, by number.

    Args:
        earlier: A picture of some seconds before.
        now: The picture.
        name: Of the pipeline, without a revision.
        read: See :func:`read_by`.

    Raises:
        InputError: There is no such pipeline.
    """
    nodes = [node for node in now.pipelines if node.base_name == name and "/" not in node.name]
    if not nodes:
        names = (node.base_name for node in now.pipelines)
        raise unknown("pipeline", name, names, "use the name without .v<revision>")
    before = {node.run: node.behind_ms for node in earlier.pipelines}
    elapsed_ms = now.made_ms - earlier.made_ms
    return tuple(
        RevisionStatus(
            pipeline=node.name,
            revision=node.revision,
            state=node.state,
            progress=node.progress,
            shows=None if node.batch is None else node.batch.commit_lsn,
            behind_ms=node.behind_ms,
            caught_up_in_ms=time_to_catch_up(before.get(node.run), node.behind_ms, elapsed_ms),
            read_by=tuple(where for where, pipeline in read.items() if pipeline == node.name),
        )
        for node in sorted(nodes, key=lambda node: node.revision)
    )


def time_to_catch_up(before_ms: int | None, behind_ms: int | None, elapsed_ms: int) -> int | None:
    """Returns in how many milliseconds a reader has caught up at its present rate.

    Args:
        before_ms: How far behind they were.
        behind_ms: How far they are now.
        elapsed_ms: The time in between.

    Returns:
        None: it is not known, or they do not come closer.
    """
    if before_ms is None or behind_ms is None or before_ms <= behind_ms:
        return None
    return behind_ms * elapsed_ms // (before_ms - behind_ms)


def switch_readers(
    settings: Settings,
    registration: PipelineRegistration,
    schema: str | None,
    *,
    accept_earlier: bool,
    source: str | None,
    timeout: timedelta,
) -> tuple[str, Switched]:
    """Lets readers read a revision; returns where they do, and what was done.

    Args:
        settings: Say where outputs are.
        registration: Of the revision.
        schema: Where views of readers of tables in PostgreSQL are; for these alone, and they need it.
        accept_earlier: Also to a revision that is behind.
        source: Whose commits all revisions have; None: there is no such source.
        timeout: How long to wait.

    Raises:
        CommandConfigError: Nothing says where the outputs are, or the schema.
        InputError: The pipeline has no outputs whose readers can be switched.
        SlackwaterError: Nothing was changed, and it says why.
    """
    named = named_pipeline(registration)
    name, views = registration.pipeline, {view.name: view.output for view in registration.views}
    if registration.scope != "strict":
        raise InputError(
            f"pipeline {name!r} has scope {registration.scope!r}: there is no commit that all of "
            "its documents show",
            "readers cannot be switched at one commit; see docs/views.md#scope",
        )
    if named.kind == "postgres":
        if schema is None:
            raise CommandConfigError(f"pipeline {name!r} has tables in PostgreSQL", "specify --schema")
        from slackwater.client.table_switch import switch_tables

        url = tables_url(settings, name)
        done = switch_tables(url, schema, name, accept_earlier=accept_earlier, source=source, timeout=timeout)
        return f"of schema {schema}", done
    if schema is not None:
        raise CommandConfigError(f"pipeline {name!r} has no tables in PostgreSQL", "omit --schema")
    if named.kind == "kafka":
        kafka = kafka_settings(settings, "where the output is")
        done = switch_topics(
            kafka,
            name,
            registration.revision,
            views,
            accept_earlier=accept_earlier,
            source=source,
            timeout=timeout,
        )
        return f"of the topics of {registration.base_name}", done
    from slackwater.client.lake_switch import switch_lake

    with closing(open_lake(settings, named.kind, name)) as lake:
        done = switch_lake(
            lake,
            name,
            registration.revision,
            views,
            accept_earlier=accept_earlier,
            source=source,
            timeout=timeout,
        )
    return f"of the lake tables of {registration.base_name}", done
