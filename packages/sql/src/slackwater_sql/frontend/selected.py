"""What a SELECT has become."""

from dataclasses import dataclass

from slackwater_sql.frontend.build import Build, Result
from slackwater_sql.frontend.scope import Visible
from slackwater_sql.logical import AggregateCall, Expression, Extend, Relation


@dataclass(frozen=True, slots=True)
class Selected:
    """The rows of a SELECT whose select list is not computed yet.

    Attributes:
        relation: The rows.
        names: Names of the columns; empty for those without one.
        items: The columns over the rows.
        equal: For a subquery: expressions over the query around, and what they must equal here.
        residual: For a subquery: other conditions over both.
        calls: The aggregates, if there is no GROUP BY: without rows there is one row all the same.
        is_bare: Nothing but the aggregation happens to the groups.
    """

    relation: Relation
    names: tuple[str, ...]
    items: tuple[Expression, ...]
    equal: tuple[tuple[Expression, Expression], ...] = ()
    residual: tuple[Expression, ...] = ()
    calls: tuple[tuple[str, AggregateCall], ...] | None = None
    is_bare: bool = True

    @property
    def is_correlated(self) -> bool:
        """It uses columns of the query around."""
        return bool(self.equal or self.residual)

    def computed(self, build: Build) -> Result:
        """The rows with all columns of the select list."""
        new: list[tuple[str, Expression]] = []
        columns: list[Visible] = []
        for name, item in zip(self.names, self.items, strict=True):
            column = item.column
            if column is None:
                column = next((known for known, each in new if each.sql == item.sql), None)
            if column is None:
                column = build.new_id()
                new.append((column, item))
            columns.append(Visible(name, column))
        relation = Extend(self.relation, tuple(new)) if new else self.relation
        return Result(relation, tuple(columns), tuple(each.span for each in self.items))
