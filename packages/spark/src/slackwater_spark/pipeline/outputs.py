"""Which views of a pipeline are published, and to which topics."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from slackwater_protocol.keys import commit_topic
from slackwater_spark.pipeline.toml import TomlTable

SINK_KINDS = ("kafka",)
"""Where views can be published."""

_KEYS = ("kind", "topic", "partitions")
_KEYS_OF_SEVERAL = (*_KEYS, "publish")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True)
class ViewOutput:
    """Where a view is published."""

    view: str
    topic: str
    partitions: int | None = None
    """None: as the topic is, or four."""
    kind: str = SINK_KINDS[0]
    """Of the sink."""


def topic_name(table: TomlTable, key: str, default: str | None = None) -> str:
    """A text that Kafka takes in a topic's name."""
    name = table.text(key, default)
    if not _TOPIC_NAME.fullmatch(name):
        raise table.error(key, f"{name!r} names Kafka topics: expected letters, digits, '.', '_' and '-'")
    return name


def revised(name: str, revision: int) -> str:
    """The name of what belongs to a revision alone."""
    return name if revision == 1 else f"{name}.v{revision}"


def read_outputs(toml: TomlTable, views: Sequence[str], revision: int) -> tuple[ViewOutput, ...]:
    """The outputs that a definition has, by view.

    Raises:
        DefinitionError: key and reason.
    """
    single = toml.table("output")
    several = toml.table("outputs")
    if single.values and several.values:
        raise toml.error("output", "stands beside [outputs.<view>]", "keep one of the two")
    if len(views) > 1 and single.values:
        names = ", ".join(views)
        hint = f"with several views ({names}) write [outputs.{views[0]}]"
        raise toml.error("output", "does not say which view it is of", hint)
    if several.values or len(views) > 1:
        outputs = _outputs(several, views, revision)
    else:
        single.only(_KEYS)
        outputs = (_output(single, views[0], revision),)
    _refuse_shared_topics(toml, outputs)
    return outputs


def _outputs(several: TomlTable, views: Sequence[str], revision: int) -> tuple[ViewOutput, ...]:
    several.only(views)
    published = []
    for view in views:
        table = several.table(view)
        table.only(_KEYS_OF_SEVERAL)
        if table.boolean("publish", default=True):
            published.append(_output(table, view, revision))
        elif len(table.values) > 1:
            key = next(key for key in _KEYS if key in table.values)
            raise table.error(key, "stands beside publish = false", "a view that is not published has none")
    if not published:
        raise several.error(views[0], "no view is published", "a pipeline publishes at least one")
    return tuple(published)


def _output(table: TomlTable, view: str, revision: int) -> ViewOutput:
    topic = topic_name(table, "topic", revised(view, revision))
    partitions = table.integer("partitions", None, minimum=1)
    return ViewOutput(view, topic, partitions, table.choice("kind", SINK_KINDS, SINK_KINDS[0]))


def _refuse_shared_topics(toml: TomlTable, outputs: Sequence[ViewOutput]) -> None:
    taken: dict[str, str] = {}
    for output in outputs:
        for topic in (output.topic, commit_topic(output.topic)):
            if topic in taken:
                views = f"{taken[topic]} and {output.view}"
                raise toml.error("outputs", f"{views} both write topic {topic!r}", "each view has its own")
            taken[topic] = output.view
