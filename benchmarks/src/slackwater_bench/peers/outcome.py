"""What a run of a peer found."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from slackwater_certify import Certificate


class Setting(StrEnum):
    """How the change events come."""

    BACKLOG = "backlog"
    """The topics are full before the peer starts."""
    LIVE = "live"
    """They are written at a steady rate while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The certificate, as far as the table needs it."""

    documents: int
    """Documents and deletes that the peer wrote."""
    torn: int
    """Match no committed state of their order."""
    contradictory: int
    """Torn documents that show it themselves: the invariants do not hold."""
    went_back: int
    """Show an older state than one shown before."""
    repeated: int
    """Show the same state again."""
    lost: int
    """Orders whose last state was never shown."""
    final_differences: int
    """Orders whose last document is wrong, missing or too many."""
    delay_p50_ms: int | None
    delay_p99_ms: int | None

    @classmethod
    def of(cls, certificate: Certificate) -> "Verdict":
        """From what the checker found."""
        delay = certificate.delay_ms
        return cls(
            documents=certificate.outputs,
            torn=certificate.torn + certificate.wrong_lsn,
            contradictory=certificate.invariant_violations,
            went_back=certificate.order_violations,
            repeated=certificate.repeated,
            lost=certificate.lost,
            final_differences=certificate.final_differences,
            delay_p50_ms=delay.p50 if delay else None,
            delay_p99_ms=delay.p99 if delay else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRun:
    """One peer in one setting. Either ``not_run`` says why there are no numbers, or all are there."""

    peer: str
    setting: Setting
    not_run: str | None = None
    events: int = 0
    """Change events in the topics."""
    startup_seconds: float = 0.0
    """From the start of the process until it reads."""
    seconds: float = 0.0
    """From then until the broker appended the last document."""
    memory_mib: float = 0.0
    """Peak of proportional set sizes, all processes of the peer together."""
    verdict: Verdict | None = None

    @property
    def events_per_second(self) -> float:
        """Change events by seconds."""
        return self.events / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """As it stands in a results file."""
        return {**asdict(self), "events_per_second": round(self.events_per_second)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "PeerRun":
        """The reverse of :meth:`to_json`."""
        known = {name: found for name, found in value.items() if name in cls.__dataclass_fields__}
        verdict = known.pop("verdict", None)
        known["setting"] = Setting(known["setting"])
        return cls(**known, verdict=Verdict(**verdict) if verdict else None)
