"""Finds everything that is wrong with a source, and its likely cause: a pure function of the facts."""

from collections.abc import Callable, Iterator

from slackwater.cdc.completeness import UNDECIDED_SNAPSHOT
from slackwater.cdc.initial_snapshot import SNAPSHOT_HINT
from slackwater.cli.doctor.facts import Cause, Finding, PartitionFacts, PartitionId, SourceFacts, partition_of
from slackwater.control import ComponentKind, PipelineState, SourceSigns, fault_of_run, faults_of_source
from slackwater.cuts import FrontierState
from slackwater.protocol import SNAPSHOT_XID, Evidence, OpenTransaction, Verdict, format_position
from slackwater_sidecar import describe_open

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
    if facts.kafka_error is not None:
        yield Finding(
            cause=Cause.KAFKA_AWAY,
            what=facts.kafka_error,
            advice=("check brokers, address and permissions; until then the state of the topics is unknown",),
        )
    if facts.redis_error is not None:
        yield Finding(
            cause=Cause.REDIS_AWAY,
            what=facts.redis_error,
            advice=(
                "nothing is lost: readers use the cut log, and the sidecar fills Redis when it is back",
                "docs/runbooks.md#redis-lost",
            ),
        )
    if facts.redis_wrong is not None:
        yield Finding(
            cause=Cause.REDIS_WRONG,
            what=facts.redis_wrong,
            advice=(
                "nothing is lost: readers use the cut log, and a running sidecar corrects Redis",
                "does it happen again? somebody else writes to keys slackwater:*; see docs/sidecar.md#users",
            ),
        )
    if facts.cut_log_error is not None:
        yield Finding(cause=Cause.CUT_LOG, what=facts.cut_log_error, advice=("docs/runbooks.md#cut-log",))


def _pipelines(facts: SourceFacts) -> Iterator[Finding]:
    signs = SourceSigns(source=facts.source, status=facts.status)
    for pipeline in facts.pipelines:
        fault = fault_of_run(pipeline, signs, facts.now_ms)
        if fault is not None:
            has_failed = pipeline.state is PipelineState.FAILED
            yield Finding(
                cause=Cause.PIPELINE_FAILED if has_failed else Cause.PIPELINE_VANISHED,
                what=fault.evidence,
                advice=(
                    fault.advice,
                    f"will it never run again? slackwater pipeline delete {pipeline.name}",
                ),
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


def _state(facts: SourceFacts) -> Iterator[Finding]:
    status = facts.status
    if status is None:
        return
    if status.state is FrontierState.REGRESSED:
        yield Finding(
            cause=Cause.REGRESSED,
            what=status.detail,
            advice=(
                f"slackwater source new-timeline --source {facts.source}",
                "docs/runbooks.md#regressed",
            ),
        )
    elif status.state is FrontierState.BAD_INPUT:
        yield Finding(
            cause=Cause.BAD_INPUT,
            what=status.detail,
            advice=(
                "docs/runbooks.md#source-refused",
                "look at the record; is the topic written by the connector only, in a known format?",
                f"in {facts.topics.transactions}: slackwater source skip --source {facts.source} --to LSN "
                "skips it, with the LSN of a later commit",
                "in a data topic: delete the records up to it (kafka-delete-records.sh), let the connector "
                "take a new snapshot, start a new cut log",
            ),
        )
    elif status.state is FrontierState.MISCONFIGURED:
        yield Finding(
            cause=Cause.MISCONFIGURED,
            what=status.detail,
            advice=("change the connector as described: docs/runbooks.md#source-refused",),
        )
    elif status.state is FrontierState.WAITING and not (facts.open or facts.kafka_error):
        yield Finding(cause=Cause.WAITING, what=status.detail, advice=("it continues automatically",))


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
        self.positions = {partition_of(name): offsets[1] for name, offsets in transaction.places.items()}
        """Where the sidecar reads next, by partition."""

    @property
    def incomplete(self) -> list[str]:
        """Tables of which fewer rows were read than END announced."""
        expected, received = self.transaction.expected, self.transaction.received
        return [table for table, count in sorted(expected.items()) if received.get(table, 0) < count]

    def partitions(self) -> Iterator[tuple[PartitionId, PartitionFacts, int]]:
        """Yields partitions of incomplete tables (before END: all) with facts and the sidecar's position."""
        topics = {self.facts.topics.data(table) for table in self.incomplete}
        for partition, position in sorted(self.positions.items()):
            known = self.facts.partitions.get(partition)
            if known is not None and (not topics or partition[0] in topics):
                yield partition, known, position

    def shown(self, cause: Cause, evidence: list[str], *advice: str) -> Finding | None:
        """Returns a finding about this transaction; None without evidence."""
        return self.finding(cause, evidence, *advice) if evidence else None

    def finding(self, cause: Cause, evidence: list[str], *advice: str) -> Finding:
        """Returns a finding about this transaction."""
        what = describe_open(self.transaction)
        return Finding(cause=cause, what=what, evidence=tuple(evidence), advice=advice)

    @property
    def skip(self) -> str:
        """Returns the command that lets it pass."""
        lsn = self.transaction.commit_lsn
        to = format_position(lsn) if lsn else "LSN"
        return f"slackwater source skip --source {self.facts.source} --to {to}"


def _likely_cause(transaction: OpenTransaction, facts: SourceFacts) -> Finding:
    """Finds the first cause that the facts show: what only needs patience before what needs a decision.

    Needs Kafka's side of the facts.
    """
    case = _OpenCase(transaction, facts)
    for rule in _RULES:
        finding = rule(case)
        if finding is not None:
            return finding
    return case.finding(Cause.WAITS_FOR_OTHERS, ["all rows that END announced have been read"])


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
    missing = {
        t: facts.topics.data(t) for t in case.incomplete if facts.topics.data(t) not in facts.data_topics
    }
    if not missing:
        return None
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
    return case.shown(
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
    return case.shown(
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
    return case.shown(
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
    return case.shown(
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
    topics = {facts.topics.data(table) for table in judged}
    quiet = [
        partition
        for partition, known in sorted(facts.partitions.items())
        if partition[0] in topics and lsn is not None and (known.newest_row_lsn or 0) <= lsn
    ]
    if not quiet:
        return None
    return case.finding(
        Cause.NOT_OVERTAKEN,
        [f"{_named(partition)}: no row of a later transaction yet" for partition in quiet[:_LISTED]],
        "wait: a table with evidence `overtaken` needs a later row in each of its partitions",
        f"a table with little traffic? use counts: --evidence {judged[0]}=counts (sidecar.evidence)",
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


def _connector_down(case: _OpenCase) -> Finding:
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
)
