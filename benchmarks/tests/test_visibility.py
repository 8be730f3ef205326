import json
import urllib.request

from slackwater_bench.visibility import Board, Sample, VisibilityMatcher, serving


def test_a_commit_record_makes_all_transactions_up_to_its_lsn_visible() -> None:
    matcher = VisibilityMatcher()
    matcher.committed(10, 1_000)
    matcher.committed(20, 1_100)
    matcher.committed(30, 1_200)
    assert matcher.visible(20, 1_500) == [Sample(10, 500), Sample(20, 400)]
    assert matcher.waiting == 1


def test_an_end_read_late_counts_from_the_commit_record_that_covered_it() -> None:
    matcher = VisibilityMatcher()
    assert matcher.visible(20, 1_500) == []
    assert matcher.visible(40, 1_900) == []
    assert matcher.committed(10, 1_000) == Sample(10, 500)
    assert matcher.committed(30, 1_200) == Sample(30, 700)
    assert matcher.committed(50, 1_300) is None
    assert matcher.waiting == 1


def test_a_replayed_end_is_counted_once() -> None:
    matcher = VisibilityMatcher()
    matcher.committed(10, 1_000)
    matcher.committed(20, 1_100)
    assert matcher.committed(10, 1_000) is None
    assert len(matcher.visible(20, 1_500)) == 2


def test_commits_before_the_start_are_left_out() -> None:
    matcher = VisibilityMatcher(since_ms=1_100)
    matcher.committed(10, 1_000)
    matcher.committed(20, 1_100)
    assert matcher.visible(20, 1_500) == [Sample(20, 400)]


def test_samples_are_served_once_and_metrics_keep_counting() -> None:
    board = Board()
    board.post([Sample(10, 250), Sample(20, 400)], waiting=3, commits=1)
    with serving(board, 0) as port:
        address = f"http://127.0.0.1:{port}"
        assert json.loads(_get(f"{address}/samples")) == [[10, 250], [20, 400]]
        assert json.loads(_get(f"{address}/samples")) == []
        metrics = _get(f"{address}/metrics")
    assert "slackwater_commit_to_visible_seconds_count 2.0" in metrics
    assert "slackwater_transactions_not_visible 3.0" in metrics
    assert "slackwater_commit_records_total 1.0" in metrics


def _get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=120) as answer:  # noqa: S310 - our own server
        return str(answer.read().decode())
