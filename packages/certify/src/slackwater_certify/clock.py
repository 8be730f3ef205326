"""The wall clock, for outputs that have no times of their own."""

from datetime import UTC, datetime


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return int(datetime.now(UTC).timestamp() * 1000)  # noqa: TID251 - the judge shares no code, so no Clock
