"""Every type of PostgreSQL behind a real connector: exact, or refused as the reference page says."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slackwater_lab.column_types import OVERRIDES, PAGE, WRONG, page, run_trial

if TYPE_CHECKING:
    from slackwater_lab.servers.pytest_plugin import DevStackFactory

pytestmark = [pytest.mark.system, pytest.mark.slow]


def test_every_value_is_exact_or_refused_as_the_reference_says(dev_stack: "DevStackFactory") -> None:
    outcomes = run_trial(dev_stack(partitions=1, kafka_heap="512m", connector_overrides=OVERRIDES))
    assert [outcome for outcome in outcomes if outcome.result.startswith(WRONG)] == []
    written = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")
    assert page(outcomes) == written, "`make column-types` writes it"
