"""Outputs in PostgreSQL and lakes while the pipeline is killed and their server is away or their disk full.

As ``test_faults.py``, and with the schedule of ``python -m slackwater_lab chaos --short --output KIND``.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.outputs.contract import SinkKind
from slackwater_lab.chaos.run import run_session
from slackwater_lab.chaos.schedule import output_schedule, text
from slackwater_lab.chaos.system import System, SystemSettings
from slackwater_lab.workloads import WORKLOADS

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

SEED = 1
ORDERS = 500
CHANGES_PER_SECOND = 150.0


def say(line: str) -> None:
    """Shown when a test fails."""
    sys.stdout.write(f"{line}\n")


@pytest.fixture(params=[kind for kind in SinkKind if kind is not SinkKind.KAFKA])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[System]:
    """Everything up, writers writing."""
    settings = SystemSettings(
        folder=tmp_path / "run",
        workload=WORKLOADS["orders"](SEED, ORDERS),
        changes_per_second=CHANGES_PER_SECOND,
        output=request.param,
    )
    with System(settings) as running:
        yield running


def test_nothing_is_torn_lost_or_repeated_in_tables_whatever_happens(system: System) -> None:
    rounds = output_schedule(SEED, system.settings.output)
    say(text(rounds))

    outcome = run_session(system, rounds, say)

    say(outcome.text)
    assert outcome.certificate.is_clean
    assert outcome.missed == ()
    assert outcome.certificate.commits > len(rounds)
    happened = {occurrence.planned.fault for occurrence in outcome.occurrences}
    assert happened == {planned.fault for round_ in rounds for planned in round_.planned}
    kills = [fault for fault in happened if fault.startswith(("sink killed", "pipeline killed"))]
    assert outcome.deaths["pipeline"] >= len(kills)
