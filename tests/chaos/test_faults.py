"""Faults of the table, each once, while writers write; then the certifier compares record by record.

It knows every committed state of every document from the change topics and the final state from
PostgreSQL, so a torn, lost or repeated document is found wherever it is. The schedule is that of seed 1
and is printed; ``python -m slackwater_lab chaos --short --seed N`` runs that of another seed, and without
``--short`` the faults are random.
"""

import sys
from concurrent.futures import ThreadPoolExecutor, wait

import psycopg
import pytest

from slackwater.outputs.contract import SinkStep
from slackwater_lab.chaos.consumers import APPLIED, GROUPS
from slackwater_lab.chaos.disturber import Disturber
from slackwater_lab.chaos.run import ChaosRun, judge, judge_consumers, run_session
from slackwater_lab.chaos.schedule import Round, text
from slackwater_lab.chaos.system import System

pytestmark = [pytest.mark.chaos, pytest.mark.full]

SECONDS = 900.0
LOOK_SECONDS = 1.0
SERVERS = ("broker", "connect", "postgres", "redis", "sidecar-1", "sidecar-2")


def say(line: str) -> None:
    """Shown when a test fails."""
    sys.stdout.write(f"{line}\n")


def test_nothing_is_torn_lost_or_repeated_whatever_happens(system: System, rounds: list[Round]) -> None:
    say(text(rounds))

    outcome = run_session(system, rounds, say)

    say(outcome.text)
    assert outcome.is_clean
    assert {group.group for group in outcome.consumed} == GROUPS.keys()
    assert all(group.records > 100 for group in outcome.consumed)
    assert outcome.missed == ()
    happened = {occurrence.planned.fault for occurrence in outcome.occurrences}
    assert happened == {planned.fault for round_ in rounds for planned in round_.planned}
    assert all(occurrence.changes > 0 for occurrence in outcome.occurrences)
    killed = {fault.removesuffix(" killed") for fault in happened if fault.endswith(" killed")}
    if "both sidecars" in killed:
        killed |= {"sidecar-1", "sidecar-2"}
    assert outcome.deaths.keys() >= killed & set(SERVERS)
    if any("disk full" in fault for fault in happened):
        ends = [words for program, words in outcome.last_words if program == "pipeline"]
        assert any("error: " in words and system.disk.says in words for words in ends), ends


def test_without_one_transaction_the_same_consumers_repeat_effects(system: System) -> None:
    ChaosRun(system, say).finish()  # nobody writes any more, everything is visible
    assert system.consumers is not None
    system.consumers.without = ("one-transaction",)  # from the next start on, which follows the kill
    for which in ("first", "second"):
        Disturber(system).kill(f"{which} consumers")

    with ThreadPoolExecutor(1) as pool:
        death = pool.submit(Disturber(system).kill_at, APPLIED, "consumer")
        while not death.done():
            touch_orders(system)
            wait([death], LOOK_SECONDS)
    death.result()

    last = system.write_last()
    assert system.wait(lambda: system.visible.newest_lsn > last, SECONDS)
    found = {group.group: group for group in judge_consumers(system)}
    assert sum(found[name].repeated for name in ("documents", "units")) > 0
    assert all(group.lost == 0 for group in found.values())


def test_without_the_progress_check_the_same_run_finds_repeated_documents(system: System) -> None:
    ChaosRun(system, say).finish()  # nobody writes any more, everything is visible
    assert judge(system).is_clean
    system.without = ("progress-check",)  # from the next start on, which follows the kill
    touch_orders(system)

    Disturber(system).kill_at(SinkStep.COMMITTED)

    last = system.write_last()
    assert system.wait(lambda: system.visible.newest_lsn > last, SECONDS)
    found = judge(system)
    assert found.repeated > 0
    assert not found.is_clean


def touch_orders(system: System) -> None:
    """Changes documents, so that the next batch has some."""
    with psycopg.connect(system.dsn) as connection:
        connection.execute("UPDATE inventory.orders SET customer = customer || '!' WHERE id <= 50")
