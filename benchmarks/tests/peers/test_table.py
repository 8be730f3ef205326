from slackwater_bench.peers.registry import Peer
from slackwater_bench.peers.results import Details, Setting, latest_runs, render, stored_runs

FOLD = Peer(name="fold", title="a fold", settings="one thread")
OTHER = Peer(name="other", title="another", settings="defaults")
CLEAN = {"documents": 2_000, "torn": 0, "final_differences": 0, "delay_p50_ms": 12, "delay_p99_ms": 1_345}
BACKLOG: Details = {
    "peer": "fold",
    "setting": "backlog",
    "not_run": None,
    "startup_seconds": 1.25,
    "events_per_second": 2_500,
    "memory_mib": 512.0,
    "verdict": CLEAN,
}
LIVE: Details = {**BACKLOG, "setting": "live", "memory_mib": 2_048.0}


def cells(text: str, title: str) -> list[str]:
    row = next(line for line in text.splitlines() if line.startswith(f"| {title} "))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_a_row_has_the_numbers_of_both_settings() -> None:
    row = cells(render([FOLD], latest_runs([BACKLOG, LIVE])), "a fold")
    assert row[1:6] == ["2,500", "1.2 s", "2,000", "0", "yes"]
    assert row[6:] == ["2,000", "0", "yes", "12 ms / 1,345 ms", "2.0 GiB"]


def test_the_larger_memory_of_both_settings_is_shown() -> None:
    row = cells(render([FOLD], latest_runs([BACKLOG, {**LIVE, "memory_mib": 36.2}])), "a fold")
    assert row[-1] == "512 MiB"


def test_torn_documents_and_a_wrong_final_state_are_counted() -> None:
    verdict = {**CLEAN, "torn": 500, "final_differences": 3}
    row = cells(render([FOLD], latest_runs([{**BACKLOG, "verdict": verdict}])), "a fold")
    assert row[4:6] == ["500 (25.0%)", "no, 3 orders"]


def test_a_peer_that_failed_is_not_run_and_the_reason_is_given() -> None:
    failed = {"peer": "other", "setting": "backlog", "not_run": "no such wheel"}
    text = render([FOLD, OTHER], latest_runs([BACKLOG, failed]))
    assert cells(text, "another")[1:3] == ["not run", "-"]
    assert "- another, backlog: not run: no such wheel" in text.splitlines()


def test_what_was_never_started_is_neither_run_nor_failed() -> None:
    assert cells(render([OTHER], {}), "another")[1:] == ["-"] * 10


def test_settings_are_shown() -> None:
    assert "- a fold: one thread" in render([FOLD], {}).splitlines()


def test_the_newest_run_of_a_peer_and_setting_counts() -> None:
    newer = {**BACKLOG, "seconds": 2.0}
    assert latest_runs([BACKLOG, LIVE, newer]) == {
        ("fold", Setting.BACKLOG): newer,
        ("fold", Setting.LIVE): LIVE,
    }


def test_the_runs_that_are_kept_are_shown() -> None:
    row = cells(render([FOLD], latest_runs(stored_runs())), "a fold")
    assert "-" not in row
