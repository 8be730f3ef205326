"""What a sidecar reports: the state of its source, and what it knows of the connector and the database."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    """What a finding means for a run."""

    OK = "ok"
    WARNING = "warning"
    """A run begins, but something may not be as intended."""
    PROBLEM = "problem"
    """A run would fail, or would wait forever."""
    FAULT = "fault"
    """Values would be wrong, or rows would be missing: whatever reads the source refuses it."""

    @property
    def is_problem(self) -> bool:
        """Says whether somebody has to do something before a run can begin."""
        return self in (Verdict.PROBLEM, Verdict.FAULT)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    subject: str
    """What was checked, e.g. ``brokers`` or ``table public.invoice``."""
    verdict: Verdict
    text: str
    hint: str = ""
    """What to do; empty if there is nothing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """A task of the connector, as Kafka Connect describes it."""

    number: int
    state: str
    """``RUNNING``, ``FAILED``, …"""
    error: str = ""
    """The first line of its stack trace; empty unless it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReport:
    """The replication slot that the connector reads."""

    name: str
    exists: bool
    is_active: bool = False
    """Whether a connector reads it, or takes a snapshot first."""
    wal_status: str = ""
    """As PostgreSQL says: ``reserved``, ``extended``, ``unreserved`` or ``lost``."""
    retained_bytes: int = 0
    """How much of its log the database keeps because of the slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorReport:
    """Everything that a sidecar has learnt at one moment; what it was not told to ask is not known."""

    read_ms: int
    """Until when it was seen to be so, milliseconds since the epoch."""
    since_ms: int
    """Since when :attr:`trouble` has been the same, milliseconds since the epoch."""
    kafka_error: str = ""
    """Why Kafka did not answer; empty: it did."""
    connect_error: str = ""
    """Why Kafka Connect did not answer; empty: it did, or it was not asked."""
    name: str = ""
    """The connector's name in Kafka Connect; empty: there is none of this source, or it is not known."""
    state: str = ""
    """``RUNNING``, ``PAUSED``, ``STOPPED``, ``FAILED``, … as Kafka Connect says; ``ABSENT``: there is no
    connector of this source; empty: not known."""
    error: str = ""
    """The first line of the connector's own stack trace; empty unless it failed."""
    tasks: tuple[TaskReport, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    """The connector's configuration without its secrets; empty: not known."""
    heartbeat_ms: int | None = None
    """When the newest heartbeat was written, milliseconds since the epoch; None: there is none."""
    heartbeat_interval_ms: int | None = None
    """The time between the last two heartbeats; None: not known."""
    database_error: str = ""
    """Why the database did not answer; empty: it did, or it was not asked."""
    database_since_ms: int = 0
    """Since when the database has answered without a break, milliseconds since the epoch; 0: not known."""
    slot: SlotReport | None = None
    """None: not known."""
    findings: tuple[Finding, ...] = ()
    """What is wrong with the connector's configuration and the database's catalogue."""

    @property
    def faults(self) -> tuple[Finding, ...]:
        """Returns the findings for which the source is refused."""
        return tuple(finding for finding in self.findings if finding.verdict is Verdict.FAULT)

    @property
    def trouble(self) -> tuple[object, ...]:
        """Returns all that says whether connector and database work, to see whether it has changed."""
        return (
            bool(self.kafka_error),
            bool(self.connect_error),
            self.state,
            self.tasks,
            bool(self.database_error),
            self.slot and (self.slot.exists, self.slot.is_active, self.slot.wal_status),
        )


class FrontierState(StrEnum):
    """The state of a source's frontier: it advances, or the reason why not."""

    RUNNING = "running"
    WAITING = "waiting"
    """Something has to appear first: a topic, the end of an initial snapshot."""
    STALLED = "stalled"
    """A transaction cannot complete; the ``open`` hash names it."""
    REGRESSED = "regressed"
    """LSNs went back without a new timeline: an operator has to decide."""
    BAD_INPUT = "bad_input"
    MISCONFIGURED = "misconfigured"
    STOPPED = "stopped"
    FAILED = "failed"
    """The sidecar gave up on this source; the detail says why."""

    @property
    def is_refusal(self) -> bool:
        """Whether no further cut is published until someone repairs the source."""
        return self in (FrontierState.REGRESSED, FrontierState.BAD_INPUT, FrontierState.MISCONFIGURED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionNotice:
    """Where a source's LSNs went back, for the operator who has to decide."""

    transaction_offset: int
    """The first END of the lower LSNs, in the transaction topic: a new timeline begins there."""
    xid: int
    commit_lsn: int
    newest_lsn: int
    """The commit LSN that was the newest until then."""
    has_snapshot: bool
    """Whether a snapshot at an LSN that is not higher has begun in the data topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierStatus:
    """State of a source's frontier as its sidecar last saw it."""

    state: FrontierState
    detail: str = ""
    """The facts that a person needs beyond the state; empty if all is well."""
    wall_ms: int
    """The time of the report, milliseconds since the epoch."""
    sidecar: str
    timeline: int | None = None
    """The timeline that the sidecar follows; None if unknown."""
    regression: RegressionNotice | None = None
    connector: ConnectorReport | None = None
    """What the sidecar knows about the connector; None if nothing. Only the store's ``set_status``
    changes it, because cuts are put too often for that."""
