"""GROUPING SETS, ROLLUP and CUBE: one aggregate for each set of columns, and their rows together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slackwater.sql.frontend.context import BindContext
from slackwater.sql.logical import Aggregate, AggregateCall, Expression, Extend, Relation, Span, Union

Group = tuple[str, Expression]


@dataclass
class GroupingSets:
    """The sets of one GROUP BY.

    Attributes:
        sets: The ids of the columns of each set; a set may occur more than once.
        keys: For each set, those of its columns that identify its groups.
        identity: Ids that identify a row of all sets: the number of its set, then the key as text.
    """

    context: BindContext
    sets: tuple[tuple[str, ...], ...]
    keys: tuple[tuple[str, ...], ...]
    identity: tuple[str, ...]
    _masks: dict[tuple[str, ...], str] = field(default_factory=dict)

    @property
    def everywhere(self) -> frozenset[str]:
        """The columns that are in every set."""
        return frozenset(self.sets[0]).intersection(*self.sets[1:])

    def grouping(self, columns: tuple[str, ...]) -> str:
        """Returns the id of GROUPING(…): a bit for each column, set in rows whose set lacks the column."""
        if columns not in self._masks:
            self._masks[columns] = self.context.new_id()
        return self._masks[columns]

    def aggregated(
        self,
        relation: Relation,
        groups: Sequence[Group],
        calls: Sequence[tuple[str, AggregateCall]],
        span: Span,
    ) -> Relation:
        """Returns the rows of all sets; columns that a set lacks are NULL in its rows."""
        names = tuple(name for name, _ in groups)
        types = self.context.types(Extend(relation, tuple(groups)), names) if names else ()
        nulls = {name: f"CAST(NULL AS {of_type})" for name, of_type in zip(names, types, strict=True)}
        shown = (*names, *(name for name, _ in calls), *self._masks.values())
        branches = [self._branch(number, relation, groups, calls, nulls) for number in range(len(self.sets))]
        sources = tuple((name, tuple(ids[name] for _, ids in branches)) for name in shown)
        return Union(tuple(branch for branch, _ in branches), sources, self.identity, span)

    def _branch(
        self,
        number: int,
        relation: Relation,
        groups: Sequence[Group],
        calls: Sequence[tuple[str, AggregateCall]],
        nulls: Mapping[str, str],
    ) -> tuple[Relation, dict[str, str]]:
        """Returns the groups of one set, and its column for each id of the whole."""
        of_set, labels = self.sets[number], self.context.labels
        ids = {name: self.context.new_id(labels.get(name, "")) for name in (*nulls, *dict(calls))}
        ids |= {mask: self.context.new_id() for mask in self._masks.values()}
        own = tuple((ids[name], each) for name, each in groups if name in of_set)
        counted = tuple((ids[name], call) for name, call in calls)
        key = tuple(ids[name] for name in self.keys[number])
        place = groups[0][1].span if groups else Span(0, 0)
        if not own and not counted:
            count = AggregateCall("count(*)", "count", (), False, None, (), place, "")
            counted = ((self.context.new_id(), count),)
        constants = {name: sql for name, sql in nulls.items() if name not in of_set}
        for columns, mask in self._masks.items():
            bits = sum(1 << bit for bit, name in enumerate(reversed(columns)) if name not in of_set)
            constants[mask] = f"CAST({bits} AS BIGINT)"
        computed = tuple((ids[name], Expression(sql, (), place)) for name, sql in constants.items())
        aggregate = Aggregate(relation, own, counted, key, place)
        return (Extend(aggregate, computed) if computed else aggregate), ids
