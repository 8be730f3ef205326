"""Every way, killed behind every step: what is lost, repeated or shown without its data.

How the promises were seen to fail: ``test_twins.py`` switches the mechanisms off.
"""

import pytest

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater_lab.messaging.sending.crash import CrashPoint, crash_and_recover, crash_points, new_order

pytestmark = pytest.mark.integration


@pytest.mark.full
@pytest.mark.parametrize("point", list(crash_points()), ids=str)
def test_a_death_costs_what_the_way_says_and_nothing_else(
    point: CrashPoint, postgres_server: PostgresServer, kafka_broker: KafkaBroker
) -> None:
    order = new_order(point.way, postgres_server.dsn(), kafka_broker.bootstrap)
    report = crash_and_recover(point, order)
    found = {
        "lost": report.recovered.lost,
        "repeated": report.recovered.repeated,
        "ghosts": report.recovered.ghosts,
        "early": report.early,
    }
    expected = {name: getattr(point.loss, name) for name in found}
    assert {n: v for n, v in found.items() if expected[n] is not None} == {
        n: v for n, v in expected.items() if v is not None
    }
    assert all(found[name] > 0 for name, value in expected.items() if value is None)
    assert report.recovered.disordered == 0
    assert report.recovered.rows > 0
