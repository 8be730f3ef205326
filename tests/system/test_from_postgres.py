"""Expressions and views mean what PostgreSQL says, or are refused."""

import pytest

from slackwater.dev import PostgresServer
from slackwater_lab.from_postgres import DIFFERENT, run, trial

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_nothing_is_different_in_silence(postgres_server: PostgresServer) -> None:
    outcomes = run(postgres_server, trial())
    assert [each for each in outcomes if each.result.startswith(DIFFERENT)] == []
