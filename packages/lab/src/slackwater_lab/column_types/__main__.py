"""Writes the reference page of types: ``python -m slackwater_lab.column_types``."""

import sys
import tempfile
from pathlib import Path

from slackwater.dev import DevStack, DevStackSettings
from slackwater_lab.column_types.page import PAGE, page
from slackwater_lab.column_types.trial import OVERRIDES, WRONG, run_trial


def main() -> int:
    """Runs the trial and writes the page; the exit code is 1 if a value is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        settings = DevStackSettings(
            folder=Path(folder),
            keep_data=False,
            partitions=1,
            kafka_heap="512m",
            connector_overrides=OVERRIDES,
        )
        with DevStack(settings) as stack:
            outcomes = run_trial(stack)
    wrong = [outcome for outcome in outcomes if outcome.result.startswith(WRONG)]
    for outcome in wrong:
        sys.stdout.write(f"{outcome}\n")
    PAGE.write_text(page(outcomes), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
