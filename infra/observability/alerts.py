"""The alert rules: when somebody has to be told, and which page says what to do then."""

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One rule."""

    name: str
    expression: str
    wait: str
    """So long it must hold before anybody is told; as Prometheus writes durations."""
    severity: str
    """``page``: somebody has to act now; ``ticket``: somebody has to look at it on a working day."""
    summary: str
    """A sentence, with labels as ``{{ $labels.source }}``."""
    runbook: str
    """The anchor of its section in docs/runbooks.md."""

    def to_rule(self) -> dict[str, Any]:
        """Returns the rule as Prometheus reads it."""
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": self.wait,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "runbook": f"docs/runbooks.md#{self.runbook}"},
        }


ALERTS: Final = (
    Alert(
        name="SlackwaterSourceStalled",
        expression='max by (source) (slackwater_state{state="stalled"}) == 1',
        wait="1m",
        severity="page",
        summary="No cut of source {{ $labels.source }} passes: a transaction is incomplete.",
        runbook="open-transaction",
    ),
    Alert(
        name="SlackwaterSourceRegressed",
        expression='max by (source) (slackwater_state{state="regressed"}) == 1',
        wait="1m",
        severity="page",
        summary="The LSNs of source {{ $labels.source }} have gone back; nothing is published any more.",
        runbook="regressed",
    ),
    Alert(
        name="SlackwaterSourceRefused",
        expression=(
            'max by (source, state) (slackwater_state{state=~"bad_input|misconfigured|failed"}) == 1'
        ),
        wait="1m",
        severity="page",
        summary="Source {{ $labels.source }} cannot be followed: {{ $labels.state }}.",
        runbook="source-refused",
    ),
    Alert(
        name="SlackwaterKafkaAway",
        expression='max by (source) (slackwater_dependency_trouble{dependency="kafka"}) == 1',
        wait="1m",
        severity="page",
        summary="Kafka does not answer the sidecar of source {{ $labels.source }}.",
        runbook="kafka-away",
    ),
    Alert(
        name="SlackwaterRedisAway",
        expression='max by (source) (slackwater_dependency_trouble{dependency="redis"}) == 1',
        wait="1m",
        severity="ticket",
        summary="Redis does not answer the sidecar of source {{ $labels.source }}: pipelines are slower.",
        runbook="redis-lost",
    ),
    Alert(
        name="SlackwaterRedisCorrected",
        expression="sum by (source) (increase(slackwater_redis_corrections_total[10m])) > 0",
        wait="0m",
        severity="ticket",
        summary="Somebody else writes to the Redis of source {{ $labels.source }}, or it was exchanged.",
        runbook="redis-lost",
    ),
    Alert(
        name="SlackwaterHeldBack",
        expression="max by (source) (slackwater_held_back_offsets) > 0",
        wait="5m",
        severity="page",
        summary="A Kafka transaction over the topics of source {{ $labels.source }} hangs.",
        runbook="readers-stand-still",
    ),
    Alert(
        name="SlackwaterSidecarSilent",
        expression="min by (source) (slackwater_last_turn_age_seconds) > 30",
        wait="0m",
        severity="page",
        summary="No sidecar of source {{ $labels.source }} does anything.",
        runbook="sidecar-restart",
    ),
    Alert(
        name="SlackwaterTargetDown",
        expression='up{job=~"slackwater.*"} == 0',
        wait="1m",
        severity="page",
        summary="{{ $labels.instance }} does not answer Prometheus.",
        runbook="ended",
    ),
    Alert(
        name="SlackwaterPipelineDown",
        expression='max by (state) (slackwater_pipelines{state=~"failed|vanished"}) > 0',
        wait="1m",
        severity="page",
        summary="{{ $value }} pipelines do not run: {{ $labels.state }}.",
        runbook="ended",
    ),
    Alert(
        name="SlackwaterViewsLate",
        expression="max by (kind) (slackwater_culprits) > 0",
        wait="1m",
        severity="ticket",
        summary="{{ $value }} of kind {{ $labels.kind }} make views late.",
        runbook="views-late",
    ),
    Alert(
        name="SlackwaterRunBehind",
        expression=(
            "max by (source, pipeline) (slackwater_run_newest_commit_age_seconds) "
            "- on (source) group_left () min by (source) (slackwater_newest_commit_age_seconds) > 60"
        ),
        wait="2m",
        severity="ticket",
        summary="Pipeline {{ $labels.pipeline }} is {{ $value | humanizeDuration }} behind its source.",
        runbook="views-late",
    ),
    Alert(
        name="SlackwaterRunSilent",
        expression="min by (source, pipeline) (slackwater_run_last_turn_age_seconds) > 300",
        wait="0m",
        severity="page",
        summary="Pipeline {{ $labels.pipeline }} has stood still for {{ $value | humanizeDuration }}.",
        runbook="run-silent",
    ),
    Alert(
        name="SlackwaterRunRestarts",
        expression="max by (pipeline) (changes(slackwater_run_start_time_seconds[15m])) > 2",
        wait="0m",
        severity="page",
        summary="Pipeline {{ $labels.pipeline }} is started again and again.",
        runbook="ended",
    ),
    Alert(
        name="SlackwaterRunErrors",
        expression='sum by (pipeline) (increase(slackwater_run_log_records_total{level="error"}[10m])) > 0',
        wait="0m",
        severity="ticket",
        summary="The run of pipeline {{ $labels.pipeline }} logs errors.",
        runbook="ended",
    ),
)


def rule_file() -> dict[str, Any]:
    """Returns the file of rules as Prometheus reads it."""
    return {"groups": [{"name": "slackwater", "rules": [alert.to_rule() for alert in ALERTS]}]}


def alerts_table() -> str:
    """Returns the rules as a table of the documentation."""
    lines = ["| alert | when | for | severity | runbook |", "|---|---|---:|---|---|"]
    for alert in ALERTS:
        when = alert.expression.replace("|", "\\|")
        page = f"[{alert.runbook}](runbooks.md#{alert.runbook})"
        lines.append(f"| {alert.name} | `{when}` | {alert.wait} | {alert.severity} | {page} |")
    return "\n".join(lines)
