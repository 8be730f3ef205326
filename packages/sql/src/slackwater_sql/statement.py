"""The SQL that evaluates a view: the user's text, with tables, key comparisons and columns replaced in place.

Lifting: each input gives one more column, the number of the *point* (a key at an LSN) at which its row is
live. Rows of one point have the same key, so comparing the key of two inputs becomes comparing their points;
NULL keys never match, so the column that is compared (`match`) is NULL where the key is. Grouping by the
point as well keeps the points apart. Everything else the user wrote stays and means what it means in DuckDB.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from slackwater_sql.document import identifier
from slackwater_sql.plan import InputPlan

POINT = "__slackwater_point"
MATCH = "__slackwater_match"
GROUP = "__slackwater_group"
FROM_LSN = "__slackwater_from"
TO_LSN = "__slackwater_to"
LSN = "__slackwater_lsn"
POINTS_TABLE = "__slackwater_points"


@dataclass(frozen=True, slots=True)
class Splice:
    """A replacement of the characters `[start, end)`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class SplicedText:
    """A text after its replacements, which knows where each character comes from.

    Attributes:
        text: The new text.
        moves: For each replaced or kept piece: its start in the new text, its start in the old one, and
            whether it was kept.
    """

    text: str
    moves: tuple[tuple[int, int, bool], ...]

    def original_offset(self, offset: int) -> int:
        """Where in the old text a character of the new one comes from."""
        new, old, is_kept = [move for move in self.moves if move[0] <= offset][-1]
        return old + (offset - new if is_kept else 0)


def rows_table(number: int) -> str:
    """Name under which the rows of an input are handed to DuckDB."""
    return f"__slackwater_rows_{number}"


def spliced(text: str, splices: Iterable[Splice]) -> SplicedText:
    """The text with the replacements, which must not overlap; replacements of one place keep their order."""
    parts: list[str] = []
    moves: list[tuple[int, int, bool]] = []
    length = position = 0
    for splice in sorted(splices, key=lambda each: (each.start, each.end)):
        for piece, origin, is_kept in (
            (text[position : splice.start], position, True),
            (splice.text, splice.start, False),
        ):
            moves.append((length, origin, is_kept))
            parts.append(piece)
            length += len(piece)
        position = splice.end
    moves.append((length, position, True))
    return SplicedText("".join([*parts, text[position:]]), tuple(moves))


def live_rows(number: int, plan: InputPlan) -> str:
    """Relation of an input's rows when all are live and points and keys are numbered alike."""
    columns = _columns(plan, "", identifier(GROUP))
    return f"(SELECT {columns} FROM {rows_table(number)}) AS {identifier(plan.alias)}"  # noqa: S608 - own names


def lifted_rows(number: int, plan: InputPlan) -> str:
    """Relation of an input's rows at each point: the versions that are live at the point's LSN."""
    columns = _columns(plan, "r.", f"p.{identifier(POINT)}")
    live = f"r.{FROM_LSN} <= p.{LSN} AND p.{LSN} < r.{TO_LSN}"
    return (
        f"(SELECT {columns} FROM {POINTS_TABLE} AS p JOIN {rows_table(number)} AS r "  # noqa: S608 - own names
        f"ON r.{GROUP} = p.{GROUP} AND {live}) AS {identifier(plan.alias)}"
    )


def _columns(plan: InputPlan, prefix: str, point: str) -> str:
    nullable = [column.name for column in plan.columns if column.nullable and column.name in plan.key]
    is_null = " OR ".join(f"{prefix}{identifier(name)} IS NULL" for name in nullable)
    match = f"CASE WHEN {is_null} THEN NULL ELSE {point} END" if is_null else point
    values = (
        f"{column.type.duckdb_expression(prefix + identifier(column.name))} AS {identifier(column.name)}"
        for column in plan.columns
    )
    return ", ".join([f"{point} AS {POINT}", f"{match} AS {MATCH}", *values])
