"""The rights in Kafka that each role needs, and no others; they follow from the names of topics.

Kafka derives Describe from Read and Write, DescribeConfigs from AlterConfigs, and the rights of idempotent
producers from Write, so these are not listed in addition. Topics that a role creates if they do not exist
need Create. Readers that join no group need no right on one.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from shlex import quote

from slackwater.protocol.keys import (
    LEASES_TOPIC,
    PIPELINES_TOPIC,
    SourceTopics,
    avro_commit_topic,
    commit_topic,
    commit_writer_id,
    cut_log_topic,
    outcome_topic,
    progress_topic,
    readers_topic,
    slot_prefix,
    units_topic,
)


class Resource(StrEnum):
    """The kinds of resources that rights apply to."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


class Operation(StrEnum):
    """The operations that rights permit, as Kafka's tools spell them."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    ALTER_CONFIGS = "AlterConfigs"


_USE = (Operation.CREATE, Operation.READ, Operation.WRITE)
"""The operations on topics that a role creates, reads and writes."""


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """A right to do something with a resource."""

    resource: Resource
    name: str
    operation: Operation
    is_prefix: bool = False
    """Whether it applies to all resources whose names begin with this name."""

    def __str__(self) -> str:
        """Returns it in words, such as ``Write on topic orders``."""
        return f"{self.operation} on {self.resource} {self.name}{'*' if self.is_prefix else ''}"


def sidecar_rights(topics: SourceTopics, tables: Iterable[str] | None) -> list[Right]:
    """Returns the rights of a sidecar for one source; without tables for all, also later ones."""
    cuts = cut_log_topic(topics.source)
    made = _topics([cuts], Operation.CREATE, Operation.WRITE)
    read = _read_of(topics, tables, topics.notifications, topics.heartbeats)
    unread = (cuts, topics.notifications, topics.heartbeats)
    configs = [
        replace(each, operation=Operation.DESCRIBE_CONFIGS) for each in read if each.name not in unread
    ]
    return _sorted(made, read, configs)


def source_commit_rights(source: str) -> list[Right]:
    """Returns the further rights of a sidecar that writes the commit records of its source in Avro."""
    own = [Right(Resource.TRANSACTIONAL_ID, commit_writer_id(source), Operation.WRITE)]
    return _sorted(_topics([avro_commit_topic(source)], *_USE), own)


def pipeline_rights(
    name: str,
    inputs: SourceTopics,
    tables: Iterable[str],
    outputs: Mapping[str, str],
    *,
    is_latest: bool,
    avro_commits_of: Iterable[str] = (),
) -> list[Right]:
    """Returns the rights of the runs of a pipeline, whose name is given with its revision.

    Outputs are named with the source that each is a table of, or an empty text. The latest ones are
    compacted, and keep replaced documents for longer while a reader has a lease. Some of them have commit
    records in Avro, too.
    """
    found = [
        _topics([cut_log_topic(inputs.source), *map(inputs.data, tables)], Operation.READ),
        _topics([PIPELINES_TOPIC], *_USE),
        _topics([LEASES_TOPIC], Operation.READ, Operation.WRITE),
    ]
    if outputs:
        sources = [SourceTopics(source) for source in outputs.values() if source]
        order = [topic for source in sources for topic in (source.transactions, source.notifications)]
        progress, configs = progress_topic(name), Operation.DESCRIBE_CONFIGS
        found += [
            _topics([*outputs, *map(commit_topic, outputs), *order, progress], *_USE),
            _topics(map(avro_commit_topic, avro_commits_of), *_USE),
            _topics(outputs, Operation.ALTER_CONFIGS if is_latest else configs),
            _topics([progress], configs),
            [Right(Resource.TRANSACTIONAL_ID, f"slackwater-{name}", Operation.WRITE)],
        ]
    return _sorted(*found)


def consumer_rights(topics: Iterable[str], group: str, *, is_by_unit: bool = False) -> list[Right]:
    """Returns the rights of a member of a consumer group.

    Args:
        topics: What is read: with whole transactions also the topic of their commit records or cuts.
        group: The consumer group.
        is_by_unit: Whether its members share the work by unit.
    """
    lanes = _topics([units_topic(group)], Operation.CREATE, Operation.READ) if is_by_unit else []
    own = [Right(Resource.GROUP, group, Operation.READ)]
    return _sorted(_topics(topics, Operation.READ), lanes, own)


def reader_rights(
    topics: Iterable[str],
    commits: Iterable[str],
    pipelines: Iterable[str],
    *,
    reads_earlier: bool = False,
    takes_leases: bool = False,
) -> list[Right]:
    """Returns the rights of a service that reads views as of a commit.

    Args:
        topics: The topics of the views.
        commits: The topics of their commit records.
        pipelines: The names of the pipelines, with their revisions.
        reads_earlier: Whether it reads views of compacted topics at other commits than the newest one, which
            is also needed to read several pipelines together.
        takes_leases: Whether it takes leases.
    """
    topics = list(topics)
    read = _topics([*topics, *commits, *map(progress_topic, pipelines)], Operation.READ)
    configs = _topics(topics if reads_earlier else [], Operation.DESCRIBE_CONFIGS)
    return _sorted(read, configs, _topics([LEASES_TOPIC] if takes_leases else [], *_USE))


def switched_rights(pipeline: str) -> list[Right]:
    """Returns the rights of a reader that finds out which revision of a pipeline to read."""
    return _topics([readers_topic(pipeline)], Operation.READ)


def switching_rights(pipeline: str, revisions: Iterable[str], topics: Iterable[str]) -> list[Right]:
    """Returns the rights to switch the readers of topics between revisions of a pipeline."""
    topics, readers = list(topics), readers_topic(pipeline)
    return _sorted(
        _topics([readers], *_USE),
        _topics([*map(progress_topic, revisions), *map(commit_topic, topics)], Operation.READ),
        _topics(topics, Operation.DESCRIBE_CONFIGS),
        [Right(Resource.TRANSACTIONAL_ID, readers, Operation.WRITE)],
    )


def producer_rights(source: str, group: str | None = None) -> list[Right]:
    """Returns the rights of a service that writes its own transactions (``TransactionalProducer``).

    Topics whose names begin with its source are its own. If it has a group, its transactions store positions.
    """
    own = f"{source}."
    found = [
        [Right(Resource.TOPIC, own, each, is_prefix=True) for each in (Operation.CREATE, Operation.WRITE)],
        _topics([commit_topic(source)], Operation.READ),
        [Right(Resource.TRANSACTIONAL_ID, f"slackwater-producer-{source}", Operation.WRITE)],
    ]
    if group is not None:
        found.append([Right(Resource.GROUP, group, Operation.READ)])
    return _sorted(*found)


class SendingWay(StrEnum):
    """The ways to send messages with a database transaction, which differ in the rights that they need."""

    POLLING = "polling"
    CAPTURE = "capture"
    CHAINED = "chained"
    SAVED = "saved"
    PROVEN = "proven"
    PREPARED = "prepared"


def sender_rights(
    way: SendingWay, topics: Iterable[str], name: str, captured: Iterable[str] = (), *, is_pool: bool = False
) -> list[Right]:
    """Returns the rights of a service that sends messages, or of its relay.

    Args:
        way: How it sends them.
        topics: Where they go.
        name: The name of the sender; a relay that polls has none.
        captured: With capture: the topics of the outbox and of the cuts of its source.
        is_pool: Whether it is the name of a pool, whose slots have names of their own.
    """
    topics = list(topics)
    found = [_topics(topics, Operation.WRITE)]
    own = slot_prefix(name) if is_pool else name
    if way is not SendingWay.POLLING:
        found.append([Right(Resource.TRANSACTIONAL_ID, own, Operation.WRITE, is_pool)])
    if way is SendingWay.CAPTURE:
        found.append(consumer_rights(captured, name))
    if way in (SendingWay.SAVED, SendingWay.PROVEN):
        found.append(audit_rights(topics))
    if way is SendingWay.PREPARED:
        outcomes = own if is_pool else outcome_topic(name)
        found.append([Right(Resource.TOPIC, outcomes, each, is_pool) for each in _USE])
    return _sorted(*found)


def audit_rights(topics: Iterable[str]) -> list[Right]:
    """Returns the rights of a reader of topics of messages without a group, such as an audit."""
    return _sorted(_topics(topics, Operation.READ))


def processor_rights(
    topics: Iterable[str], outputs: Iterable[str], group: str, transactional_id: str
) -> list[Right]:
    """Returns the rights of a service that makes messages of messages within Kafka."""
    own = [Right(Resource.TRANSACTIONAL_ID, transactional_id, Operation.WRITE)]
    return _sorted(consumer_rights(topics, group), own, _topics(outputs, Operation.WRITE))


def viewer_rights(topics: SourceTopics, tables: Iterable[str] | None) -> list[Right]:
    """Returns the rights of the control plane, and of people who only look (status, delay, doctor)."""
    return _sorted(_topics([PIPELINES_TOPIC, LEASES_TOPIC], Operation.READ), _read_of(topics, tables))


def operator_rights(topics: SourceTopics, tables: Iterable[str] | None) -> list[Right]:
    """Returns the rights of an operator who also decides about a source, leases and removed pipelines."""
    logs = (PIPELINES_TOPIC, LEASES_TOPIC, cut_log_topic(topics.source))
    return _sorted(viewer_rights(topics, tables), _topics(logs, Operation.WRITE))


def _read_of(topics: SourceTopics, tables: Iterable[str] | None, *more: str) -> list[Right]:
    """Returns the rights to read a source: its tables, its transactions, its cuts and more of its topics."""
    read = {cut_log_topic(topics.source), topics.transactions, *more}
    if tables is not None:
        read.update(map(topics.data, tables))
        return _topics(read, Operation.READ)
    prefix = f"{topics.source}."
    read.update(topics.routed.values())
    found = _topics([name for name in read if not name.startswith(prefix)], Operation.READ)
    return [Right(Resource.TOPIC, prefix, Operation.READ, is_prefix=True), *found]


def _topics(names: Iterable[str], *operations: Operation) -> list[Right]:
    return [Right(Resource.TOPIC, name, each) for name in names for each in operations]


def _sorted(*found: Iterable[Right]) -> list[Right]:
    return sorted({right for each in found for right in each})


def _quoted(text: str) -> str:
    """Returns a text as one word of a shell, always in quotes."""
    return "'" + text.replace("'", "'\"'\"'") + "'"


def acl_commands(user: str, rights: Iterable[Right], bootstrap: str) -> Iterator[str]:
    """Yields a command of Kafka's own tool for each resource and operation."""
    for right in rights:
        pattern = " --resource-pattern-type prefixed" if right.is_prefix else ""
        yield (
            f"kafka-acls.sh --bootstrap-server {quote(bootstrap)} --add "
            f"--allow-principal {_quoted(f'User:{user}')} "
            f"--operation {right.operation} --{right.resource} {_quoted(right.name)}{pattern}"
        )


def strimzi_user(user: str, rights: Iterable[Right]) -> dict[str, object]:
    """Returns a ``KafkaUser`` of Strimzi 0.49 or newer with these rights."""
    acls: dict[tuple[Resource, str, bool], list[str]] = {}
    for right in rights:
        acls.setdefault((right.resource, right.name, right.is_prefix), []).append(str(right.operation))
    kinds = {Resource.TRANSACTIONAL_ID: "transactionalId"}
    return {
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": "KafkaUser",
        "metadata": {"name": user},
        "spec": {
            "authorization": {
                "type": "simple",
                "acls": [
                    {
                        "resource": {
                            "type": kinds.get(resource, str(resource)),
                            "name": name,
                            "patternType": "prefix" if is_prefix else "literal",
                        },
                        "operations": operations,
                        "host": "*",
                    }
                    for (resource, name, is_prefix), operations in acls.items()
                ],
            }
        },
    }
