"""The schedule is a function of its seed and leaves no fault out."""

from collections import Counter
from itertools import islice

import pytest

from slackwater.outputs.contract import SinkKind, SinkStep
from slackwater_lab.chaos.faults import FAULTS, SINK_FAULTS, faults_of
from slackwater_lab.chaos.output import JUDGED_OUTPUTS
from slackwater_lab.chaos.schedule import (
    consumer_schedule,
    output_schedule,
    random_schedule,
    short_schedule,
    text,
)
from slackwater_lab.chaos.system import EXECUTORS


def in_short(seed: int) -> Counter[str]:
    return Counter(each.fault for round_ in short_schedule(seed) for each in round_.planned)


def test_the_short_schedule_has_every_fault_of_its_own_once_and_one_more_step_of_the_sink() -> None:
    planned = in_short(3)
    assert set(planned.values()) == {1}
    (another,) = planned.keys() - {fault.name for fault in faults_of(SinkKind.KAFKA) if fault.is_in_short}
    assert FAULTS[another] in SINK_FAULTS


def test_with_other_seeds_the_short_schedule_has_every_step_of_the_sink() -> None:
    assert {name for seed in range(50) for name in in_short(seed)} >= {each.name for each in SINK_FAULTS}


def test_a_seed_always_gives_the_same_schedule_and_another_seed_another_one() -> None:
    assert short_schedule(3) == short_schedule(3)
    assert short_schedule(3) != short_schedule(4)
    assert list(islice(random_schedule(3), 99)) == list(islice(random_schedule(3), 99))
    assert list(islice(random_schedule(3), 99)) != list(islice(random_schedule(4), 99))


@pytest.mark.parametrize("seed", range(20))
def test_a_random_round_stops_spark_once_at_most(seed: int) -> None:
    for round_ in islice(random_schedule(seed), 50):
        assert sum(FAULTS[each.fault].stops_pipeline for each in round_.planned) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_faults_of_executors_come_only_while_there_are_executors(seed: int) -> None:
    for rounds in (short_schedule(seed), list(islice(random_schedule(seed), 50))):
        is_separate = rounds is not None and rounds[0].master == EXECUTORS
        for round_ in rounds:
            if any(FAULTS[each.fault].needs_executors for each in round_.planned):
                assert is_separate
            if any(FAULTS[each.fault].stops_pipeline for each in round_.planned):
                is_separate = round_.master == EXECUTORS


@pytest.mark.parametrize("output", JUDGED_OUTPUTS)
def test_in_time_every_fault_is_drawn_that_can_happen_to_the_output(output: SinkKind) -> None:
    drawn = {each.fault for round_ in islice(random_schedule(1, output), 500) for each in round_.planned}
    assert drawn == {fault.name for fault in faults_of(output)}


def test_every_fault_can_happen_to_some_output() -> None:
    known = {fault.name for kind in JUDGED_OUTPUTS for fault in faults_of(kind, has_consumers=True)}
    assert known == set(FAULTS)


def test_faults_of_consumers_come_only_where_there_are_consumers() -> None:
    of_consumers = {fault.name for fault in FAULTS.values() if fault.needs_consumers}
    for has_consumers in (False, True):
        rounds = islice(random_schedule(1, has_consumers=has_consumers), 500)
        drawn = {each.fault for round_ in rounds for each in round_.planned}
        assert drawn & of_consumers == (of_consumers if has_consumers else set())


def test_the_schedule_of_consumers_has_all_that_happens_to_them_and_kills_of_others_beside_it() -> None:
    rounds = consumer_schedule(3)
    of_consumers = {fault.name for fault in FAULTS.values() if fault.needs_consumers}
    first = [each.fault for round_ in rounds[:2] for each in round_.planned]
    assert sorted(first) == sorted(of_consumers)
    for round_ in rounds[2:]:
        other, own = (each.fault for each in round_.planned)
        assert own in of_consumers
        assert other not in of_consumers
    assert rounds == consumer_schedule(3) != consumer_schedule(4)


@pytest.mark.parametrize("output", JUDGED_OUTPUTS[1:])
def test_the_schedule_of_an_output_has_all_that_happens_to_it_alone_and_the_decisive_kills(
    output: SinkKind,
) -> None:
    rounds = output_schedule(3, output)
    planned = [each.fault for round_ in rounds for each in round_.planned]
    own = {fault.name for fault in faults_of(output) if SinkKind.KAFKA not in fault.outputs}
    assert own
    assert set(planned) >= {*own, "sink killed: progress", "sink killed: committed", "pipeline killed"}
    assert set(planned) <= {fault.name for fault in faults_of(output)}
    assert rounds == output_schedule(3, output)
    assert "pipeline killed" in {each.fault for each in rounds[-1].planned}
    assert any(FAULTS[each.fault].end is not None for each in rounds[-1].planned)


def test_every_fault_lasts_as_long_as_its_table_says() -> None:
    for round_ in islice(random_schedule(2), 300):
        for each in round_.planned:
            least, greatest = FAULTS[each.fault].seconds
            assert round(least, 1) <= each.seconds <= round(greatest, 1)


def test_what_lasts_has_an_end_and_a_blow_has_none() -> None:
    for fault in FAULTS.values():
        assert (fault.end is not None) == (fault.seconds[1] > 0), fault.name
        assert fault.reason
        assert fault.back


def test_the_sink_is_killed_at_every_step() -> None:
    killed = {name.removeprefix("sink killed: ") for name in FAULTS if name.startswith("sink killed: ")}
    assert killed == {step.replace("_", " ") for step in SinkStep}


def test_a_schedule_reads_as_a_line_per_round() -> None:
    lines = text(short_schedule(1)).splitlines()
    assert len(lines) == len(short_schedule(1))
    assert any("disk full for" in line for line in lines)
