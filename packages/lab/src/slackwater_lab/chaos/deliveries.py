"""Judges what consumers were given, against what was committed. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

Committed = Mapping[str, Mapping[str, str]]
"""By commit id the name of each record, with the unit that it belongs to."""


class Delivery(NamedTuple):
    """A record as a handler has stored it."""

    call: str
    """Names the call of the handler that stored it."""
    commit_id: str
    unit: str
    """Empty where nothing is divided by units."""
    record: str
    """Its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFindings:
    """What was wrong with the records that a consumer group was given."""

    group: str
    calls: int
    """Transactions, or parts of one, that were handed out and whose effect is there."""
    records: int
    lost: int
    """Records that nobody was given."""
    repeated: int
    """Records whose effect is there more than once."""
    torn: int
    """Calls with a part of what belongs together, and records that no commit has."""
    disordered: int
    """Calls behind one with a later commit: of all, or of the same unit."""

    def is_clean(self, *, allows_repeats: bool) -> bool:
        """Says that nothing is wrong.

        Args:
            allows_repeats: At least once: what comes again comes out of order, too.
        """
        again = 0 if allows_repeats else self.repeated + self.disordered
        return not (self.lost or self.torn or again)

    @property
    def text(self) -> str:
        """A line for people."""
        return (
            f"consumers {self.group!r}: {self.records:,} records in {self.calls:,} calls; {self.lost} lost, "
            f"{self.repeated} repeated, {self.torn} torn, {self.disordered} out of order"
        )


def judge_deliveries(group: str, committed: Committed, deliveries: Iterable[Delivery]) -> GroupFindings:
    """Compares the deliveries of a group, in the order in which they were stored, with all commits.

    The records of a commit belong together; if deliveries name units, those of a unit in a commit do.
    """
    wanted: dict[tuple[str, str], set[str]] = defaultdict(set)
    calls: dict[tuple[str, str, str], list[str]] = {}
    is_by_unit = False
    for call, commit_id, unit, record in deliveries:
        is_by_unit = is_by_unit or bool(unit)
        calls.setdefault((call, commit_id, unit), []).append(record)
    for commit_id, records in committed.items():
        for record, unit in records.items():
            wanted[commit_id, unit if is_by_unit else ""].add(record)
    given = Counter((commit_id, record) for (_, commit_id, _), found in calls.items() for record in found)
    torn = sum(set(found) != wanted.get((commit_id, unit)) for (_, commit_id, unit), found in calls.items())
    return GroupFindings(
        group=group,
        calls=len({call for call, _, _ in calls}),
        records=given.total(),
        lost=sum((i, record) not in given for i, records in committed.items() for record in records),
        repeated=given.total() - len(given),
        torn=torn,
        disordered=_disordered(calls),
    )


def _disordered(calls: Iterable[tuple[str, str, str]]) -> int:
    newest: dict[str, str] = {}
    found = 0
    for _, commit_id, unit in calls:
        found += commit_id < newest.get(unit, "")
        newest[unit] = max(commit_id, newest.get(unit, ""))
    return found
