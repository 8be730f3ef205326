"""Finds everything that is wrong with a source: a pure function of the facts."""

from collections.abc import Iterator

from slackwater.doctor.facts import Cause, Finding, SourceFacts, absence
from slackwater.doctor.transactions import likely_cause
from slackwater_markers import FrontierState
from slackwater_protocol import SNAPSHOT_XID


def diagnose(facts: SourceFacts) -> list[Finding]:
    """Everything that is wrong, most fundamental first; empty: the source is healthy."""
    findings = [*_reachability(facts), *_sidecar(facts), *_state(facts), *_transaction_topic(facts)]
    if facts.kafka_error is None:
        findings += [likely_cause(transaction, facts) for transaction in facts.open]
    return findings


def _reachability(facts: SourceFacts) -> Iterator[Finding]:
    if facts.kafka_error is not None:
        yield Finding(
            cause=Cause.KAFKA_AWAY,
            what=facts.kafka_error,
            advice=("check brokers, address and permissions; nothing can be said of the topics meanwhile",),
        )
    if facts.redis_error is not None:
        yield Finding(
            cause=Cause.REDIS_AWAY,
            what=facts.redis_error,
            advice=(
                "nothing is lost: readers use the cut log, and the sidecar fills Redis when it is back",
                "docs/runbooks/redis-lost.md",
            ),
        )
    if facts.redis_wrong is not None:
        yield Finding(
            cause=Cause.REDIS_WRONG,
            what=facts.redis_wrong,
            advice=(
                "nothing is lost: readers use the cut log, and a running sidecar puts Redis right",
                "does it come back? somebody else writes to keys slackwater:*; see users in docs/redis.md",
            ),
        )
    if facts.cut_log_error is not None:
        yield Finding(cause=Cause.CUT_LOG, what=facts.cut_log_error, advice=("docs/runbooks/cut-log.md",))


def _sidecar(facts: SourceFacts) -> Iterator[Finding]:
    if facts.redis_error is not None or (facts.redis_wrong is not None and facts.status is None):
        return
    what = absence(facts.status, facts.now_ms)
    if what is not None:
        yield Finding(
            cause=Cause.NO_SIDECAR,
            what=what,
            advice=(
                f"slackwater sidecar --source {facts.source} --bootstrap HOST:PORT --redis-url …",
                "docs/runbooks/sidecar-restart.md",
            ),
        )


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
                "docs/runbooks/regressed.md",
            ),
        )
    elif status.state is FrontierState.BAD_INPUT:
        yield Finding(
            cause=Cause.BAD_INPUT,
            what=status.detail,
            advice=(
                "look at the record; is the topic written by the connector only, in a known format?",
                f"in {facts.topics.transactions}: slackwater source skip --source {facts.source} --to LSN "
                "passes it, with the LSN of a commit behind it",
                "in a data topic: delete the records up to it (kafka-delete-records.sh), have the connector "
                "take a new snapshot, begin a new cut log",
            ),
        )
    elif status.state is FrontierState.MISCONFIGURED:
        yield Finding(
            cause=Cause.MISCONFIGURED, what=status.detail, advice=("change the connector as it says",)
        )
    elif status.state is FrontierState.WAITING and not facts.open:
        yield Finding(cause=Cause.WAITING, what=status.detail, advice=("it goes on by itself",))


def _transaction_topic(facts: SourceFacts) -> Iterator[Finding]:
    """Absent before the first streamed transaction, so it is missed only when rows wait for their END."""
    has_streamed = facts.cut is not None and facts.cut.transaction_offset > 0
    waits = any(t.commit_lsn is None and t.xid != SNAPSHOT_XID for t in facts.open)
    if facts.kafka_error is None and facts.transactions is None and (waits or has_streamed):
        topic = facts.topics.transactions
        yield Finding(
            cause=Cause.TRANSACTION_TOPIC_MISSING,
            what=f"there is no topic {topic}",
            evidence=("rows wait for their END" if waits else "cuts were made from it before",),
            advice=(
                "the connector needs provide.transaction.metadata=true",
                "has it another name (topic.transaction, a transform)? --transaction-topic TOPIC",
            ),
        )
