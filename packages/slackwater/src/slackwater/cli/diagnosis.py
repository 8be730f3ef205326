"""Finds everything that is wrong with a source, and its likely cause: a pure function of the facts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from slackwater.cdc.completeness import UNDECIDED_SNAPSHOT
from slackwater.cdc.initial_snapshot import SNAPSHOT_HINT
from slackwater.cli.examination import PartitionFacts, PartitionId, SourceFacts, partition_of
from slackwater.control import ComponentKind, PipelineState, SourceSigns, fault_of_run, faults_of_source
from slackwater.cuts import FrontierState
from slackwater.protocol import SNAPSHOT_XID, Evidence, OpenTransaction, Verdict, format_position
from slackwater_sidecar import describe_open


class Cause(StrEnum):
    """The reason why a source does not advance, as far as the facts show."""

    KAFKA_AWAY = "kafka_away"
    """Kafka does not answer."""
    REDIS_AWAY = "redis_away"
    """Redis does not answer; pipelines continue with the cut log."""
    REDIS_WRONG = "redis_wrong"
    """It holds what no sidecar published."""
    CUT_LOG = "cut_log"
    """It has lost its cuts, or one cannot be read."""
    NO_SIDECAR = "no_sidecar"
    """None has reported, or the last one has stopped, failed or fallen silent."""
    REGRESSED = "regressed"
    """The database's LSNs went back, or an initial snapshot came after commits."""
    BAD_INPUT = "bad_input"
    """A record cannot be read or attributed."""
    MISCONFIGURED = "misconfigured"
    """The connector or a topic is not set up as reading needs it."""
    NO_SNAPSHOT = "no_snapshot"
    """Tables have had no complete snapshot, so pipelines that read them are refused."""
    WAITING = "waiting"
    """The source waits for something that comes by itself; the status says for what."""
    SNAPSHOT = "snapshot"
    """An initial snapshot is being written, or its notifications are missing."""
    TRANSACTION_TOPIC_MISSING = "transaction_topic_missing"
    """There is no topic with BEGIN and END."""
    TOPIC_MISSING = "topic_missing"
    """A table has no topic."""
    TOPIC_RECREATED = "topic_recreated"
    """A topic was deleted and made again under its name."""
    RETENTION = "retention"
    """Records were deleted before they were read."""
    HANGING = "hanging"
    """A Kafka transaction of an exactly-once connector is open."""
    SIDECAR_BEHIND = "sidecar_behind"
    """The sidecar has not read all that is in the topics."""
    CONNECTOR_DOWN = "connector_down"
    """The connector does not run, or all that is in the topics was read and nothing later comes."""
    CONNECT_AWAY = "connect_away"
    """Kafka Connect does not answer."""
    DATABASE_AWAY = "database_away"
    """The database does not answer."""
    END_LOST = "end_lost"
    """The END of a transaction is missing, and later ones have theirs."""
    DROPPED = "dropped"
    """Records were lost between the connector and the topic."""
    NOT_OVERTAKEN = "not_overtaken"
    """A table is judged by later rows in every partition, and one has none yet."""
    RENUMBERED = "renumbered"
    """The connector was restarted within the transaction."""
    WAITS_FOR_OTHERS = "waits_for_others"
    """A transaction is complete and waits for an earlier one."""
    CATALOGUE = "catalogue"
    """The topic of a table cannot have all its rows."""
    PIPELINE_FAILED = "pipeline_failed"
    """The newest run of a pipeline ended with an error."""
    PIPELINE_VANISHED = "pipeline_vanished"
    """A run of a pipeline is silent and did not say that it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, the facts that show it, and what helps."""

    cause: Cause
    what: str
    evidence: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    """Commands and settings, most likely first."""


_LISTED = 12
_ANY_COMMIT = (
    "any later commit shows them; an idle database needs regular commits: heartbeat.interval.ms with "
    "heartbeat.action.query"
)


def diagnose(facts: SourceFacts) -> list[Finding]:
    """Everything that is wrong, most fundamental first; empty: the source is healthy."""
    findings = [*_reachability(facts), *_health(facts), *_state(facts), *_snapshots(facts)]
    findings += _transaction_topic(facts)
    if facts.kafka_error is None:
        findings += [_likely_cause(transaction, facts) for transaction in facts.open]
    return [*findings, *_catalogue(facts), *_pipelines(facts)]


def _catalogue(facts: SourceFacts) -> Iterator[Finding]:
    """Yields the tables whose topics cannot have all rows, as the sidecar has seen in the database."""
    report = None if facts.status is None else facts.status.connector
    for found in () if report is None else report.findings:
        if found.verdict is Verdict.PROBLEM and found.subject.startswith(("table ", "column ")):
            yield Finding(cause=Cause.CATALOGUE, what=f"{found.subject}: {found.text}", advice=(found.hint,))


def _reachability(facts: SourceFacts) -> Iterator[Finding]:
    for cause, what, *advice in (
        (
            Cause.KAFKA_AWAY,
            facts.kafka_error,
            "check brokers, address and permissions; until then the state of the topics is unknown",
        ),
        (
            Cause.REDIS_AWAY,
            facts.redis_error,
            "nothing is lost: readers use the cut log, and the sidecar fills Redis when it is back",
            "docs/runbooks.md#redis-lost",
        ),
        (
            Cause.REDIS_WRONG,
            facts.redis_wrong,
            "nothing is lost: readers use the cut log, and a running sidecar corrects Redis",
            "does it happen again? somebody else writes to keys slackwater:*; see docs/sidecar.md#users",
        ),
        (Cause.CUT_LOG, facts.cut_log_error, "docs/runbooks.md#cut-log"),
    ):
        if what is not None:
            yield Finding(cause=Cause(cause), what=what, advice=tuple(filter(None, advice)))


def _pipelines(facts: SourceFacts) -> Iterator[Finding]:
    signs = SourceSigns(source=facts.source, status=facts.status)
    for pipeline in facts.pipelines:
        fault = fault_of_run(pipeline, signs, facts.now_ms)
        if fault is not None:
            has_failed = pipeline.state is PipelineState.FAILED
            yield Finding(
                cause=Cause.PIPELINE_FAILED if has_failed else Cause.PIPELINE_VANISHED,
                what=fault.evidence,
                advice=(fault.advice, f"will it never run again? slackwater pipeline delete {pipeline.name}"),
            )


_CAUSES = {
    ComponentKind.SIDECAR: Cause.NO_SIDECAR,
    ComponentKind.CONNECTOR: Cause.CONNECTOR_DOWN,
    ComponentKind.CONNECT: Cause.CONNECT_AWAY,
    ComponentKind.DATABASE: Cause.DATABASE_AWAY,
    ComponentKind.KAFKA: Cause.KAFKA_AWAY,
}


def _health(facts: SourceFacts) -> Iterator[Finding]:
    """Names sidecar, connector or database, if one of them does not work."""
    if facts.redis_error is not None or (facts.redis_wrong is not None and facts.status is None):
        return
    said = Cause.KAFKA_AWAY if facts.kafka_error is not None else None
    refused = facts.status is not None and facts.status.state is FrontierState.MISCONFIGURED
    for fault in faults_of_source(SourceSigns(source=facts.source, status=facts.status), facts.now_ms):
        cause = _CAUSES[fault.kind]
        if cause is not said and not (
            refused and fault.kind is ComponentKind.CONNECTOR
        ):  # the state says more
            yield Finding(cause=cause, what=fault.evidence, advice=(fault.advice,))


_OF_STATES = {
    FrontierState.REGRESSED: (
        Cause.REGRESSED,
        "slackwater source new-timeline --source {source}",
        "docs/runbooks.md#regressed",
    ),
    FrontierState.BAD_INPUT: (
        Cause.BAD_INPUT,
        "docs/runbooks.md#source-refused",
        "look at the record; is the topic written by the connector only, in a known format?",
        "in {topic}: slackwater source skip --source {source} --to LSN skips it, with the LSN of a later "
        "commit",
        "in a data topic: delete the records up to it (kafka-delete-records.sh), let the connector take a "
        "new snapshot, start a new cut log",
    ),
    FrontierState.MISCONFIGURED: (
        Cause.MISCONFIGURED,
        "change the connector as described: docs/runbooks.md#source-refused",
    ),
    FrontierState.WAITING: (Cause.WAITING, "it continues automatically"),
}
"""What a state that no cut passes means, and what helps."""


def _state(facts: SourceFacts) -> Iterator[Finding]:
    status = facts.status
    if status is None or status.state not in _OF_STATES:
        return
    if status.state is FrontierState.WAITING and (facts.open or facts.kafka_error):
        return
    cause, *advice = _OF_STATES[status.state]
    names = {"source": facts.source, "topic": facts.topics.transactions}
    helps = tuple(text.format(**names) for text in advice)
    yield Finding(cause=Cause(cause), what=status.detail, advice=helps)


def _snapshots(facts: SourceFacts) -> Iterator[Finding]:
    topics = () if facts.cut is None else facts.cut.without_snapshot[:_LISTED]
    if topics:
        yield Finding(
            cause=Cause.NO_SNAPSHOT,
            what=f"no complete snapshot of the tables of {', '.join(topics)}: nothing of them is shown",
            advice=(SNAPSHOT_HINT, "pipelines that read other tables are right, and continue"),
        )


def _transaction_topic(facts: SourceFacts) -> Iterator[Finding]:
    """Absent before the first streamed transaction, so it is missed only when rows wait for their END."""
    has_streamed = facts.cut is not None and facts.cut.transaction_offset > 0
    waits = any(t.commit_lsn is None and t.xid != SNAPSHOT_XID for t in facts.open)
    if facts.kafka_error is None and facts.transactions is None and (waits or has_streamed):
        topic = facts.topics.transactions
        yield Finding(
            cause=Cause.TRANSACTION_TOPIC_MISSING,
            what=f"topic {topic} does not exist",
            evidence=("rows are waiting for their END" if waits else "earlier cuts were derived from it",),
            advice=(
                "the connector needs provide.transaction.metadata=true",
                "does it have another name (topic.transaction, a transform)? --transaction-topic TOPIC",
            ),
        )


_Rule = Callable[["_OpenCase"], Finding | None]


class _OpenCase:
    """Holds an open transaction together with the facts about its partitions."""

    def __init__(self, transaction: OpenTransaction, facts: SourceFacts) -> None:
        self.transaction = transaction
        self.facts = facts
        expected, received = transaction.expected, transaction.received
        self.incomplete = [table for table, n in sorted(expected.items()) if received.get(table, 0) < n]
        """Tables of which fewer rows were read than END announced."""
        to = format_position(transaction.commit_lsn) if transaction.commit_lsn else "LSN"
        self.skip = f"slackwater source skip --source {facts.source} --to {to}"
        """The command that lets it pass."""

    def partitions(self) -> Iterator[tuple[PartitionId, PartitionFacts, int]]:
        """Yields partitions of incomplete tables (before END: all) with facts and the sidecar's position."""
        topics = {self.facts.topics.data(table) for table in self.incomplete}
        places = {partition_of(name): offsets[1] for name, offsets in self.transaction.places.items()}
        for partition, position in sorted(places.items()):
            known = self.facts.partitions.get(partition)
            if known is not None and (not topics or partition[0] in topics):
                yield partition, known, position

    def finding(self, cause: Cause, evidence: list[str], *advice: str) -> Finding | None:
        """Returns a finding about this transaction; None without evidence."""
        what = describe_open(self.transaction)
        return Finding(cause=cause, what=what, evidence=tuple(evidence), advice=advice) if evidence else None


def _likely_cause(transaction: OpenTransaction, facts: SourceFacts) -> Finding:
    """Finds the first cause that the facts show: what only needs patience before what needs a decision.

    Needs Kafka's side of the facts.
    """
    case = _OpenCase(transaction, facts)
    return next(filter(None, (rule(case) for rule in _RULES)))


def _snapshot(case: _OpenCase) -> Finding | None:
    if case.transaction.xid != SNAPSHOT_XID:
        return None
    if case.transaction.hint.startswith(UNDECIDED_SNAPSHOT):
        return case.finding(
            Cause.SNAPSHOT,
            [case.transaction.hint],
            "is the sidecar still reading, or is the connector not running? Then wait, or start it",
            "if both have finished, records were lost on the way: let the connector take the snapshot again "
            "(stop it, DELETE http://CONNECT:8083/connectors/NAME/offsets, resume it); nothing of this "
            "snapshot has been published",
            "were all rows deleted before it was taken again? Insert one first: without rows it has no LSN",
            "are rows older than their announcement every time? Their 'ts_ms' must be the connector's time",
            "docs/runbooks.md#open-transaction",
        )
    if "wait" in case.transaction.hint:
        return case.finding(Cause.SNAPSHOT, [case.transaction.hint], _ANY_COMMIT)
    topic = case.facts.topics.notifications
    return case.finding(
        Cause.SNAPSHOT,
        [case.transaction.hint],
        "wait until the connector has written it; `slackwater status` counts the rows",
        f"if the connector has long finished: it must announce that in {topic} "
        "(notification.enabled.channels=sink, notification.sink.topic.name)",
    )


def _missing_topic(case: _OpenCase) -> Finding | None:
    facts = case.facts
    topics = {table: facts.topics.data(table) for table in case.incomplete}
    missing = {table: topic for table, topic in topics.items() if topic not in facts.data_topics}
    pairs = ",".join(f"{table}=TOPIC" for table in missing)
    return case.finding(
        Cause.TOPIC_MISSING,
        [f"topic {topic} for {table} does not exist" for table, topic in missing.items()],
        f"written elsewhere by a transform? set the topic: --topics {pairs} (sidecar.topics)",
        "not needed? list the tables to follow (sidecar.tables), without this one",
        f"deleted? {case.skip}, after the connector has written a new snapshot",
    )


def _gone(case: _OpenCase) -> Finding | None:
    evidence = [
        f"{_named(partition)}: offset {position} is needed, but the topic begins at {known.low}"
        for partition, known, position in case.partitions()
        if position < known.low
    ]
    return case.finding(
        Cause.RETENTION,
        evidence,
        "raise retention.ms of the data topics above the longest time a sidecar may be down",
        "rows are lost: let the connector take a new snapshot, then " + case.skip,
    )


def _recreated(case: _OpenCase) -> Finding | None:
    evidence = [
        f"{_named(partition)} ends at {known.end}, but was read up to {position}"
        for partition, known, position in case.partitions()
        if position > known.end
    ]
    return case.finding(
        Cause.TOPIC_RECREATED,
        evidence,
        "the topic was deleted and recreated: let the connector take a new snapshot, start a new cut log",
    )


def _hanging(case: _OpenCase) -> Finding | None:
    evidence = [
        f"{_named(partition)}: readable up to {known.stable_end} of {known.end}"
        for partition, known, position in case.partitions()
        if known.hangs and position >= known.stable_end
    ]
    transactions = case.facts.transactions
    if case.transaction.commit_lsn is None and transactions is not None and transactions.hangs:
        topic = case.facts.topics.transactions
        evidence.append(f"{topic}/0: readable up to {transactions.stable_end} of {transactions.end}")
    return case.finding(
        Cause.HANGING,
        evidence,
        "an exactly-once connector has left a Kafka transaction open: restart its task",
        "or wait for transaction.timeout.ms of its producer",
        "or find and abort it: kafka-transactions.sh --bootstrap-server … find-hanging / abort",
    )


def _behind(case: _OpenCase) -> Finding | None:
    evidence = [
        f"{_named(partition)}: read up to {position} of {known.stable_end}"
        for partition, known, position in case.partitions()
        if position < known.stable_end
    ]
    return case.finding(
        Cause.SIDECAR_BEHIND,
        evidence,
        "the sidecar is only slow, or has paused partitions that are far ahead: wait",
        "still growing? use more processes (--workers N), or a separate sidecar for this source",
        "docs/runbooks.md#views-delayed",
    )


def _without_end(case: _OpenCase) -> Finding | None:
    if case.transaction.commit_lsn is not None:
        return None
    newest, topic = case.facts.newest_end, case.facts.topics.transactions
    if newest is None or newest.commit_ts_ms <= case.transaction.since_ms:
        return _connector_down(case)
    return case.finding(
        Cause.END_LOST,
        [
            f"{topic} has newer ENDs, up to xid {newest.xid} at {format_position(newest.commit_lsn)}, "
            "but not this one"
        ],
        "does something between the connector and the topic drop records (transforms, errors.tolerance)?",
        "cleanup.policy of the transaction topic must be delete, not compact",
        f"slackwater source skip --source {case.facts.source} --to {format_position(newest.commit_lsn)}",
    )


def _renumbered(case: _OpenCase) -> Finding | None:
    if not case.transaction.hint.startswith("rows were numbered again") or _later_rows(case):
        return None
    return case.finding(
        Cause.RENUMBERED,
        ["the connector was restarted within this transaction and has written some of its rows twice"],
        "wait: a later change in every partition of its tables, or the connector's next repetition, decides",
    )


def _not_overtaken(case: _OpenCase) -> Finding | None:
    """Tables judged by overtaking need a later row in every partition, whether rows are missing or not."""
    facts, lsn = case.facts, case.transaction.commit_lsn
    judged = [t for t in case.transaction.expected if facts.evidence.get(t) is Evidence.OVERTAKEN]
    first = next(iter(judged), "")
    topics = {facts.topics.data(table) for table in judged}
    quiet = [
        partition
        for partition, known in sorted(facts.partitions.items())
        if partition[0] in topics and lsn is not None and (known.newest_row_lsn or 0) <= lsn
    ]
    return case.finding(
        Cause.NOT_OVERTAKEN,
        [f"{_named(partition)}: no row of a later transaction yet" for partition in quiet[:_LISTED]],
        "wait: a table with evidence `overtaken` needs a later row in each of its partitions",
        f"a table with little traffic? use counts: --evidence {first}=counts (sidecar.evidence)",
    )


def _missing_rows(case: _OpenCase) -> Finding | None:
    if not case.incomplete:
        return None
    later, newest = _later_rows(case), case.facts.newest_end
    lsn = case.transaction.commit_lsn or 0
    if not later and (newest is None or newest.commit_lsn <= lsn):
        return _connector_down(case)
    tables = ", ".join(case.incomplete)
    evidence = [f"{tables}: every partition has been read to its end"]
    evidence += [
        f"{_named(partition)}: rows of later transactions arrived, up to {text}" for partition, text in later
    ]
    if newest is not None and newest.commit_lsn > lsn:
        evidence.append(f"ENDs of later transactions arrived, up to {format_position(newest.commit_lsn)}")
    overtaken = ",".join(f"{table}=overtaken" for table in case.incomplete)
    return case.finding(
        Cause.DROPPED,
        evidence,
        "look for what drops records: the connector's transforms, errors.tolerance=all, compaction",
        f"dropped on purpose? --evidence {overtaken} (sidecar.evidence): counts are then ignored",
        f"lost? {case.skip} skips it without the missing rows, for all pipelines",
    )


def _connector_down(case: _OpenCase) -> Finding | None:
    newest = case.facts.newest_end
    seconds = (case.facts.now_ms - newest.commit_ts_ms) / 1000 if newest else None
    said = (
        f"the newest END is that of xid {newest.xid}, committed {seconds:,.0f} s ago"
        if newest
        else f"{case.facts.topics.transactions} contains no END"
    )
    return case.finding(
        Cause.CONNECTOR_DOWN,
        ["everything in the topics has been read, and nothing later arrived", said],
        "is the connector running? curl http://CONNECT:8083/connectors/NAME/status",
        "does it reach the database, and is its replication slot active? select * from pg_replication_slots",
    )


def _waits(case: _OpenCase) -> Finding | None:
    return case.finding(Cause.WAITS_FOR_OTHERS, ["all rows that END announced have been read"])


def _later_rows(case: _OpenCase) -> list[tuple[PartitionId, str]]:
    """Returns partitions with a row of a later commit: none of the transaction can follow there."""
    lsn = case.transaction.commit_lsn
    return [
        (partition, format_position(known.newest_row_lsn))
        for partition, known, _ in case.partitions()
        if lsn is not None and known.newest_row_lsn is not None and known.newest_row_lsn > lsn
    ]


def _named(partition: PartitionId) -> str:
    return f"{partition[0]}/{partition[1]}"


_RULES: tuple[_Rule, ...] = (
    _snapshot,
    _missing_topic,
    _gone,
    _recreated,
    _hanging,
    _behind,
    _without_end,
    _not_overtaken,
    _renumbered,
    _missing_rows,
    _waits,
)
