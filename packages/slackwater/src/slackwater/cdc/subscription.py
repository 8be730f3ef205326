"""The tables that are followed, and the proof of completeness that each of them needs."""

from collections.abc import Mapping

from slackwater.cdc.envelope import End
from slackwater.protocol import Evidence


class Subscription:
    """The tables of a frontier. Never changes.

    Args:
        tables: The tables (``schema.table``) that are followed; None: all.
        evidence: By table, what counts as proof of completeness; ``counts`` for tables not named.
    """

    def __init__(self, tables: frozenset[str] | None, evidence: Mapping[str, Evidence] | None = None) -> None:
        self._tables = tables
        self.exempt = {t: kind for t, kind in (evidence or {}).items() if kind is not Evidence.COUNTS}
        """Tables whose completeness is not judged by counts, with what judges it."""
        self._names: dict[tuple[str, str], str | None] = {}

    def is_followed(self, table: str) -> bool:
        """Returns whether rows of a table (``schema.table``) are read."""
        return self._tables is None or table in self._tables

    def table(self, place: tuple[str, str]) -> str | None:
        """Returns ``schema.table`` for a schema and a table; None if the table is not followed."""
        try:
            return self._names[place]
        except KeyError:
            name = ".".join(place)
            self._names[place] = result = name if place[1] and self.is_followed(name) else None
            return result

    def only_followed(self, end: End) -> End:
        """Returns END without the counts of tables that are not followed."""
        if all(map(self.is_followed, end.counts)):
            return end
        counts = {table: count for table, count in end.counts.items() if self.is_followed(table)}
        return End(end.xid, end.commit_lsn, end.commit_ts_ms, counts)

    def counted(self, end: End) -> Mapping[str, int]:
        """Returns the counts of END for the tables that are judged by counts."""
        if not self.exempt or self.exempt.keys().isdisjoint(end.counts):
            return end.counts
        return {table: count for table, count in end.counts.items() if table not in self.exempt}
