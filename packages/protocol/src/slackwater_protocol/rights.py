"""The rights in Kafka that each role needs, and no others; they follow from the names of topics.

Kafka derives Describe from Read and Write, DescribeConfigs from AlterConfigs, and the rights of idempotent
producers from Write, so these are not listed in addition. Topics that a role creates if they do not exist
need Create. A single reader joins no group, but its client asks for the coordinator of one, which needs
Describe.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from slackwater_protocol.keys import (
    LEASES_TOPIC,
    PIPELINES_TOPIC,
    SourceTopics,
    commit_topic,
    cut_log_topic,
    notification_topic,
    progress_topic,
    readers_topic,
    transaction_topic,
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
    DELETE = "Delete"
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    ALTER_CONFIGS = "AlterConfigs"


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
    """Returns the rights of a sidecar for one source.

    Args:
        topics: Of the source.
        tables: Those that it follows; None: all, also later ones.
    """
    cuts = cut_log_topic(topics.source)
    read = {topics.transactions, topics.notifications, cuts, *topics.routed.values()}
    found = list(_topics(cuts, Operation.CREATE, Operation.WRITE))
    if tables is None:
        prefix = f"{topics.source}."
        found.append(Right(Resource.TOPIC, prefix, Operation.READ, is_prefix=True))
        read = {name for name in read if not name.startswith(prefix)}
    else:
        read.update(map(topics.data, tables))
    groups = _asked(f"slackwater-sidecar-{topics.source}", f"{cuts}.readers")
    return _sorted(found, groups, *(_topics(name, Operation.READ) for name in read))


def pipeline_rights(
    name: str, inputs: SourceTopics, tables: Iterable[str], outputs: Mapping[str, str]
) -> list[Right]:
    """Returns the rights of the runs of a pipeline.

    Args:
        name: Of the pipeline, with its revision.
        inputs: The topics of its source.
        tables: Those that it reads.
        outputs: By the name of each output in Kafka the source that it is a table of, else an empty text.
    """
    read = [cut_log_topic(inputs.source), *map(inputs.data, tables)]
    found = [_topics(topic, Operation.READ) for topic in read]
    logs = (cut_log_topic(inputs.source), PIPELINES_TOPIC, LEASES_TOPIC)
    found.append(_asked("slackwater-source", *(f"{topic}.readers" for topic in logs)))
    found += [
        _topics(topic, Operation.CREATE, Operation.READ, Operation.WRITE)
        for topic in (PIPELINES_TOPIC, LEASES_TOPIC)
    ]
    sources = {source for source in outputs.values() if source}
    written = [each for output in outputs for each in (output, commit_topic(output))]
    written += [
        each for source in sources for each in (transaction_topic(source), notification_topic(source))
    ]
    if outputs:
        written.append(progress_topic(name))
        found.append(_own_id(Resource.TRANSACTIONAL_ID, f"slackwater-{name}", Operation.WRITE))
        found.append(_asked(f"slackwater-{name}"))
    for topic in written:
        configs = Operation.ALTER_CONFIGS if topic in outputs else Operation.DESCRIBE_CONFIGS
        found.append(_topics(topic, Operation.CREATE, Operation.READ, Operation.WRITE, configs))
    return _sorted(*found)


def reader_rights(topics: Iterable[str], group: str | None, pipeline: str | None = None) -> list[Right]:
    """Returns the rights of a service that reads outputs, with or without a consumer group.

    Args:
        topics: The outputs; their commit records are read, too.
        group: The consumer group; None: views are read without one, at a commit.
        pipeline: The pipeline, without a revision, if its readers are switched between revisions, or if
            its views are read at a commit.
    """
    found = [_topics(name, Operation.READ) for topic in topics for name in (topic, commit_topic(topic))]
    if group is not None:
        found.append(_own_id(Resource.GROUP, group, Operation.READ))
    else:
        found += [_topics(topic, Operation.DESCRIBE_CONFIGS) for topic in topics]
    if pipeline is not None:
        found += [
            _topics(progress_topic(pipeline), Operation.READ),
            _topics(readers_topic(pipeline), Operation.READ),
        ]
    return _sorted(*found)


def producer_rights(source: str, group: str | None = None) -> list[Right]:
    """Returns the rights of a service that writes its own transactions (``TransactionalProducer``).

    Args:
        source: Its name: topics whose names begin with it are its own.
        group: The consumer group whose positions it stores in its transactions, if it does.
    """
    own = f"{source}."
    found = [
        [Right(Resource.TOPIC, own, each, is_prefix=True) for each in (Operation.CREATE, Operation.WRITE)],
        _topics(commit_topic(source), Operation.READ),
        _own_id(Resource.TRANSACTIONAL_ID, f"slackwater-producer-{source}", Operation.WRITE),
    ]
    if group is not None:
        found.append(_own_id(Resource.GROUP, group, Operation.READ))
    return _sorted(*found)


def viewer_rights(sources: Sequence[str]) -> list[Right]:
    """Returns the rights of the control plane, and of operators who only look (status, delay, doctor).

    Args:
        sources: Those that are looked at.
    """
    found = [_topics(name, Operation.READ) for name in (PIPELINES_TOPIC, LEASES_TOPIC)]
    logs = [PIPELINES_TOPIC, LEASES_TOPIC, *map(cut_log_topic, sources)]
    found.append(_asked("slackwater-cli", *(f"{topic}.readers" for topic in logs)))
    found += [[Right(Resource.TOPIC, f"{source}.", Operation.READ, is_prefix=True)] for source in sources]
    return _sorted(*found)


def operator_rights(sources: Sequence[str]) -> list[Right]:
    """Returns the rights of an operator who also decides about sources, leases and removed pipelines."""
    found = [_topics(name, Operation.WRITE) for name in (PIPELINES_TOPIC, LEASES_TOPIC)]
    found += [_topics(cut_log_topic(source), Operation.WRITE) for source in sources]
    return _sorted(viewer_rights(sources), *found)


def _topics(name: str, *operations: Operation) -> list[Right]:
    return [Right(Resource.TOPIC, name, each) for each in operations]


def _asked(*groups: str) -> list[Right]:
    return [Right(Resource.GROUP, name, Operation.DESCRIBE) for name in groups]


def _own_id(resource: Resource, name: str, operation: Operation) -> list[Right]:
    return [Right(resource, name, operation)]


def _sorted(*found: Iterable[Right]) -> list[Right]:
    return sorted({right for each in found for right in each})


def acl_commands(user: str, rights: Iterable[Right], bootstrap: str) -> Iterator[str]:
    """Yields a command of Kafka's own tool for each resource and operation."""
    for right in rights:
        pattern = " --resource-pattern-type prefixed" if right.is_prefix else ""
        yield (
            f"kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal 'User:{user}' "
            f"--operation {right.operation} --{right.resource} '{right.name}'{pattern}"
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
