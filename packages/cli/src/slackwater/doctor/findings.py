"""What a doctor finds."""

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why a source does not go on, as far as the facts show."""

    KAFKA_AWAY = "kafka_away"
    REDIS_AWAY = "redis_away"
    REDIS_WRONG = "redis_wrong"
    """It holds what no sidecar published."""
    CUT_LOG = "cut_log"
    """It has lost its cuts, or one cannot be read."""
    NO_SIDECAR = "no_sidecar"
    """None has reported, or the last one has stopped, failed or fallen silent."""
    REGRESSED = "regressed"
    BAD_INPUT = "bad_input"
    MISCONFIGURED = "misconfigured"
    WAITING = "waiting"
    SNAPSHOT = "snapshot"
    """An initial snapshot is being written, or its notifications are missing."""
    TRANSACTION_TOPIC_MISSING = "transaction_topic_missing"
    TOPIC_MISSING = "topic_missing"
    TOPIC_MADE_ANEW = "topic_made_anew"
    RETENTION = "retention"
    HANGING = "hanging"
    """A Kafka transaction of an exactly-once connector is open."""
    SIDECAR_BEHIND = "sidecar_behind"
    CONNECTOR_DOWN = "connector_down"
    END_LOST = "end_lost"
    DROPPED = "dropped"
    """Records were lost between the connector and the topic."""
    NOT_OVERTAKEN = "not_overtaken"
    """A table is judged by later rows in every partition, and one has none yet."""
    RENUMBERED = "renumbered"
    """The connector was restarted within the transaction."""
    WAITS_FOR_OTHERS = "waits_for_others"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, the facts that show it, and what helps."""

    cause: Cause
    what: str
    evidence: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    """Commands and settings, most likely first."""
