"""The result table."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from slackwater.outputs.contract import SinkKind
from slackwater.protocol import SystemClock
from slackwater_certify import Certificate, Mode, TimeBucket
from slackwater_lab.chaos.result import (
    ChaosResult,
    Occurrence,
    from_details,
    keep,
    markdown,
    newest_tables,
    rows,
    to_details,
    totals,
)
from slackwater_lab.chaos.schedule import ScheduledFault


def occurrence(fault: str, began_ms: int, recovered_ms: int, recovery: float = 1.0) -> Occurrence:
    return Occurrence(
        planned=ScheduledFault(fault, 0.0, 0.0),
        began=0.0,
        ended=10.0,
        recovered=10.0 + recovery,
        began_ms=began_ms,
        recovered_ms=recovered_ms,
        changes=1200,
    )


COUNTS = (
    "deletes",
    "documents",
    "commits",
    "snapshots",
    "transactions",
    "events",
    "torn",
    "wrong_lsn",
    "order_violations",
    "lost",
    "repeated",
    "uncovered",
    "inconsistent_states",
    "final_differences",
    "history_differences",
    "invariant_violations",
)


def certificate(**found: Any) -> Certificate:
    nothing: dict[str, Any] = dict.fromkeys(COUNTS, 0)
    nothing |= {"output": "o", "mode": Mode.BOTH, "clock": "", "outputs": 9, "largest_error": 0.0}
    nothing |= {"longest_wrong_seconds": 0.0, "delay_ms": None, "timeline": (), "examples": {}}
    return Certificate(**{**nothing, **found})


def bucket(start_ms: int, wrong: int) -> TimeBucket:
    return TimeBucket(start_ms, 10, wrong, None, None)


def test_a_row_adds_up_all_occurrences_of_a_fault() -> None:
    times = [occurrence("redis killed", 0, 1, recovery) for recovery in (1.0, 2.0, 9.0)]
    (row,) = rows(times, certificate())
    assert (row.fault, row.times, row.changes) == ("redis killed", 3, 3600)
    assert (row.recovery_seconds, row.longest_recovery_seconds) == (2.0, 9.0)
    assert (row.lost, row.repeated, row.torn) == (0, 0, 0)


def test_what_is_wrong_is_put_down_to_the_fault_during_which_it_was_published() -> None:
    timeline = (bucket(0, 0), bucket(1000, 0), bucket(2000, 4), bucket(3000, 0))
    guilty, innocent = occurrence("broker killed", 2100, 2500), occurrence("redis killed", 0, 500)
    found = rows([guilty, innocent], certificate(torn=4, timeline=timeline))
    assert {row.fault: row.torn for row in found} == {"broker killed": 4, "redis killed": 0}


def test_the_last_line_has_all_that_was_found_even_when_no_fault_can_be_blamed() -> None:
    found = certificate(lost=3, repeated=2)
    text = markdown(rows([occurrence("redis killed", 0, 1)], found), totals(found))
    assert text.splitlines()[2] == "| redis killed | 1 | 1,200 | ? | ? | 0 | 1.0 s |"
    assert text.splitlines()[-1] == "| **the whole run** | **1** | **0** | **3** | **2** | **0** |  |"


def test_the_table_has_the_order_of_the_list_of_faults() -> None:
    found = rows([occurrence("redis killed", 0, 1), occurrence("broker killed", 0, 1)], certificate())
    assert [row.fault for row in found] == ["broker killed", "redis killed"]


def test_a_table_survives_the_results_file() -> None:
    found = certificate(torn=1, wrong_lsn=2, events=5000)
    table = rows([occurrence("redis killed", 0, 1)], found)
    stored = json.loads(json.dumps(to_details(table, totals(found))))
    assert from_details(stored) == (table, totals(found))
    assert totals(found)["torn"] == 3


def test_runs_of_one_output_and_one_code_are_one_table_and_each_output_has_its_own(tmp_path: Path) -> None:
    def keep_run(output: SinkKind, seed: int, recovery: float) -> None:
        found = ChaosResult(
            occurrences=(occurrence("pipeline killed", 0, 1, recovery),),
            missed=(),
            certificate=certificate(outputs=7, transactions=3),
            deaths=Counter(pipeline=1),
            last_words=(),
            seconds=60.0,
        )
        keep(found, seed=seed, kind="short", output=output, clock=SystemClock(), folder=tmp_path)

    for seed, recovery in ((1, 2.0), (2, 4.0), (3, 9.0)):
        keep_run(SinkKind.DELTA, seed, recovery)
        keep_run(SinkKind.KAFKA, seed, recovery)
    kafka, kafka_table, delta, delta_table = newest_tables(tmp_path).split("\n\n")
    assert kafka.startswith("kafka: short, seed 3,")
    assert "| pipeline killed | 1 | 1,200 | 0 | 0 | 0 | 9.0 s |" in kafka_table
    assert delta.startswith("delta: short, seed 1, 2, 3,")
    assert "3 faults in 180 s, 9 transactions, 21 published" in delta
    assert "| pipeline killed | 3 | 3,600 | 0 | 0 | 0 | 4.0 s (at most 9.0 s) |" in delta_table
