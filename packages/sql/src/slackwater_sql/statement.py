"""Names of the tables and columns that statements of stages read."""

POINT = "__slackwater_point"
GROUP = "__slackwater_group"
FROM_LSN = "__slackwater_from"
TO_LSN = "__slackwater_to"
LSN = "__slackwater_lsn"
WEIGHT = "__slackwater_weight"
POINTS_TABLE = "__slackwater_points"
STEPS_TABLE = "__slackwater_steps"
ACCUMULATORS_TABLE = "__slackwater_accumulators"


def rows_table(number: int) -> str:
    """Name under which the rows of an input are handed to DuckDB."""
    return f"__slackwater_rows_{number}"
