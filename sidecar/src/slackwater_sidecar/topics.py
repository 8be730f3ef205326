"""Which topics belong to a source. Pure."""

import re
from collections.abc import Collection, Iterable

from slackwater_protocol.keys import data_topic


def data_topics(source: str, names: Iterable[str], tables: Collection[str] | None) -> list[str]:
    """The data topics among these names, sorted.

    Args:
        source: The connector's ``topic.prefix``.
        names: All topics of the cluster.
        tables: The subscribed tables; None: all topics named ``<source>.<schema>.<table>``.
    """
    if tables is not None:
        wanted = {data_topic(source, table) for table in tables}
        return sorted(wanted.intersection(names))
    pattern = re.compile(rf"{re.escape(source)}\.(?!slackwater\.)[^.]+\.[^.]+")
    return sorted(name for name in names if pattern.fullmatch(name))
