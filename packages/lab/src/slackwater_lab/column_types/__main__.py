"""The reference page of types, written by ``python -m slackwater_lab.column_types``.

For each type, step and replica identity it says exact, or the words of a refusal.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from slackwater.dev import DevStack, DevStackSettings
from slackwater_lab.column_types.trial import EXACT, IDENTITIES, OVERRIDES, STEPS, WRONG, Outcome, run_trial

PAGE: Final = Path("docs/reference/column-types.md")
REFUSED: Final = "refused"
HEADER: Final = """\
<!-- Written by `make column-types` from a real connector; do not edit. -->
# Column types

What the types of PostgreSQL become behind Debezium's connector. A test with a real database and a real
connector (`make column-types`) wrote this page: it compares every value with the database.

- *exact*: views have exactly the values of the database.
- *exact, except*: some values are refused. The run ends, with the column, the value and the words that the
  number stands for, before anything is shown.
- *refused*: a view that uses the column is rejected, with these words. Other views of the table are not
  affected.

*Out of line* is an update that leaves a large value unchanged (TOAST); *NULL with DEFAULT* is NULL in a
column that has a DEFAULT. The connector is configured as `slackwater connector print` does it
([connector.md](../connector.md)). Arrays were also tried empty, with NULLs and with two dimensions, dates and
times also infinite, before Christ and beyond the year 9999.

"""


def page(outcomes: Sequence[Outcome]) -> str:
    """Returns the page."""
    notes: dict[str, int] = {}
    names = dict.fromkeys(outcome.type for outcome in outcomes)
    rows = [row for name in names for row in _rows([o for o in outcomes if o.type == name], notes)]
    head = f"| type | replica identity | {' | '.join(STEPS)} |\n|{'---|' * (2 + len(STEPS))}\n"
    words = "".join(f"{number}. {text}\n" for text, number in notes.items())
    return f"{HEADER}{head}{''.join(rows)}\n## Refusals\n\n{words}"


def _rows(outcomes: Sequence[Outcome], notes: dict[str, int]) -> Iterator[str]:
    cells = {i: _cells([o for o in outcomes if o.identity == i], notes) for i in IDENTITIES}
    for found, identities in groupby(sorted(IDENTITIES, key=lambda i: cells[i]), key=lambda i: cells[i]):
        alike = set(identities)
        named = [identity for identity in IDENTITIES if identity in alike]
        shown = "all" if len(named) == len(IDENTITIES) else ", ".join(named)
        yield f"| `{outcomes[0].type}` | {shown} | {' | '.join(found)} |\n"


def _cells(outcomes: Sequence[Outcome], notes: dict[str, int]) -> tuple[str, ...]:
    return tuple(_cell([o for o in outcomes if o.step == step], notes) for step in STEPS)


def _cell(outcomes: Sequence[Outcome], notes: dict[str, int]) -> str:
    if not outcomes:
        return ""
    words = dict.fromkeys(outcome.result for outcome in outcomes if outcome.result != EXACT)
    numbers = ", ".join(f"[{notes.setdefault(text, len(notes) + 1)}]" for text in words)
    if all(outcome.result != EXACT for outcome in outcomes):
        return f"{REFUSED} {numbers}"
    return f"{EXACT}, except {numbers}" if numbers else EXACT


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
