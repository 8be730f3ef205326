from slackwater_bench.scenarios.sidecar import delays


def test_every_end_waits_for_the_first_cut_that_contains_it() -> None:
    appended = [(10, 100), (20, 101), (30, 130)]
    seen = [(10, 104.0), (25, 111.5), (31, 131.0)]

    assert delays(appended, seen) == [4.0, 10.5, 1.0]
