"""Whether two connectors follow one database: the commits of both then have one order, that of its LSNs."""

from collections.abc import Callable, Iterable

from slackwater.topics import known_topics, read_to_end
from slackwater_cdc.envelope import End, decode_transaction
from slackwater_protocol import KafkaSettings
from slackwater_protocol.keys import transaction_topic

OneDatabase = Callable[[str, str], bool]
"""Tells of two sources whether they follow one database."""

_NEWEST = 10_000
"""Records of a partition of a transaction topic that are looked at."""


def have_one_history(first: Iterable[End], second: Iterable[End]) -> bool:
    """Returns whether two lists of transactions can only be of one database.

    They are if a transaction is in both, with its number and its commit LSN, and no other one contradicts it:
    a copy of a database goes on with the same numbers, and soon gives them to commits at other LSNs.

    Args:
        first: The newest transactions of a connector.
        second: Those of another one; it may capture other tables.
    """
    by_xid, by_lsn = _places(first)
    others_by_xid, others_by_lsn = _places(second)
    common_xids, common_lsns = by_xid.keys() & others_by_xid.keys(), by_lsn.keys() & others_by_lsn.keys()
    return (
        bool(common_xids)
        and all(by_xid[xid] == others_by_xid[xid] for xid in common_xids)
        and all(by_lsn[lsn] == others_by_lsn[lsn] for lsn in common_lsns)
    )


def follow_one_database(kafka: KafkaSettings, first: str, second: str) -> bool:
    """Returns whether the newest transactions of two sources show that they follow one database.

    False also if that cannot be told: a transaction topic is missing, or they have none in common yet.

    Args:
        kafka: Where the topics of both are.
        first: A source, by the prefix of its topics.
        second: Another one.

    Raises:
        CommandUnavailableError: Kafka does not answer.
        UndecodableRecordError: A transaction topic has something else.
    """
    topics = [transaction_topic(source) for source in (first, second)]
    if not known_topics(kafka).issuperset(topics):
        return False
    return have_one_history(*(_newest_ends(kafka, topic) for topic in topics))


def _newest_ends(kafka: KafkaSettings, topic: str) -> Iterable[End]:
    for message in read_to_end(kafka.bootstrap, [topic], kafka.options, newest=_NEWEST):
        value = message.value()
        if value is not None:
            found = decode_transaction(value)
            if isinstance(found, End):
                yield found


def _places(ends: Iterable[End]) -> tuple[dict[int, int], dict[int, int]]:
    pairs = [(end.xid, end.commit_lsn) for end in ends]
    return dict(pairs), {lsn: xid for xid, lsn in pairs}
