"""Chains of Bloom filters: what was added is found, what was not hardly ever, and both for a time."""

import random
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from slackwater.protocol import ConfigError, StateError
from slackwater_messaging.receiving.filters import FilterChain, FilterPolicy, digest_of, split_digests

DAY_MS = 86_400_000
WEEK = FilterPolicy(capacity=700, error_rate=1e-9, remember=timedelta(days=7), windows=7)
GOLDEN = Path(__file__).parent / "filter-format-2.bin"


def digests(prefix: str, count: int) -> list[bytes]:
    return [digest_of(f"{prefix}-{n}".encode()) for n in range(count)]


def restored(chain: FilterChain, policy: FilterPolicy = WEEK) -> FilterChain:
    return FilterChain.restore(policy, [packed for _, _, packed in chain.take_changes()[0]])


def test_a_key_that_was_added_is_found_and_another_one_is_not() -> None:
    chain = FilterChain(WEEK)
    chain.add(digests("a", 50), 0)
    assert all(d in chain for d in digests("a", 50))
    assert not any(d in chain for d in digests("b", 1_000))


def test_a_key_is_known_for_the_whole_time_and_forgotten_after_a_window_more() -> None:
    chain = FilterChain(WEEK)
    chain.add([digest_of(b"old")], DAY_MS - 1)  # at the very end of its window
    chain.add([digest_of(b"later")], 8 * DAY_MS - 1)
    assert digest_of(b"old") in chain
    chain.add([digest_of(b"latest")], 8 * DAY_MS)
    assert digest_of(b"old") not in chain
    assert digest_of(b"later") in chain


def test_time_that_goes_back_makes_nobody_forget() -> None:
    chain = FilterChain(WEEK)
    chain.add([digest_of(b"new")], 100 * DAY_MS)
    chain.add([digest_of(b"late")], 0)
    assert digest_of(b"new") in chain
    assert digest_of(b"late") in chain
    assert len(chain) == 1


@pytest.mark.parametrize(("keys", "filters"), [(100, 1), (101, 2), (300, 2), (301, 3)])
def test_a_window_with_more_keys_than_expected_gets_further_filters(keys: int, filters: int) -> None:
    chain = FilterChain(WEEK)
    chain.add(digests("k", keys), 0)
    assert len(chain) == filters
    assert chain.error_rate <= WEEK.error_rate


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_error_rate_holds_for_the_whole_chain_also_with_more_keys_than_expected(seed: int) -> None:
    """Measured: every window full, the newest four times; unknown keys are asked for.

    Fails if windows do not share the rate, or further filters do not get smaller shares.
    """
    policy = FilterPolicy(capacity=7_000, error_rate=0.02, remember=timedelta(days=7), windows=7)
    draw = random.Random(seed)
    chain = FilterChain(policy)
    for day in range(8):
        for _ in range(1_000 * (4 if day == 7 else 1)):
            chain.add([draw.randbytes(16)], day * DAY_MS)
    asked = 40_000
    found = sum(draw.randbytes(16) in chain for _ in range(asked))
    assert len(chain) == 10
    assert chain.error_rate <= policy.error_rate
    deviation = (asked * policy.error_rate) ** 0.5
    assert found < asked * policy.error_rate + 4 * deviation
    assert found > asked * policy.error_rate / 10, "so few that the filters are larger than they have to be"


def test_a_chain_is_the_same_after_it_was_stored() -> None:
    chain = FilterChain(WEEK)
    chain.add(digests("a", 150), 0)
    chain.add(digests("b", 50), DAY_MS)
    again = restored(chain)
    assert all(d in again for d in digests("a", 150) + digests("b", 50))
    assert again.error_rate == chain.error_rate
    again.add(digests("c", 50), DAY_MS)
    assert len(again) == 3, "the newest filter keeps being filled"
    again.add(digests("d", 1), DAY_MS)
    assert len(again) == 4, "and is full as it would have been"


def test_only_filters_that_have_changed_are_written_and_those_forgotten_are_named() -> None:
    chain = FilterChain(WEEK)
    chain.add(digests("a", 1), 0)
    chain.add(digests("b", 1), DAY_MS)
    assert [(at, number) for at, number, _ in chain.take_changes()[0]] == [(0, 0), (DAY_MS, 0)]
    assert chain.take_changes() == ([], [])
    chain.add(digests("c", 1), DAY_MS)
    assert [at for at, _, _ in chain.take_changes()[0]] == [DAY_MS]
    chain.add(digests("d", 1), 8 * DAY_MS)
    changed, gone = chain.take_changes()
    assert [at for at, _, _ in changed] == [8 * DAY_MS]
    assert gone == [(0, 0)]


@pytest.mark.parametrize("place", [5, 20, 60, -1, -20])
def test_a_filter_that_is_damaged_is_refused(place: int) -> None:
    chain = FilterChain(WEEK)
    chain.add(digests("a", 10), 0)
    packed = bytearray(chain.take_changes()[0][0][2])
    packed[place] ^= 1
    with pytest.raises(StateError, match="damaged"):
        FilterChain.restore(WEEK, [bytes(packed)])


@pytest.mark.parametrize(
    ("packed", "problem"),
    [(b"", "complete header"), (b"SWBF", "complete header"), (b"x" * 200, "complete header")],
)
def test_what_is_no_filter_is_refused(packed: bytes, problem: str) -> None:
    with pytest.raises(StateError, match=problem):
        FilterChain.restore(WEEK, [packed])


@pytest.mark.parametrize("version", [1, 3])
def test_another_format_is_refused(version: int) -> None:
    """Also the first one, which did not say to which partition a filter belongs."""
    packed = bytearray(GOLDEN.read_bytes())
    packed[4] = version
    with pytest.raises(StateError, match=f"format {version}, but 2 is expected"):
        FilterChain.restore(WEEK, [bytes(packed)])


def test_a_filter_of_another_partition_is_refused() -> None:
    one, other = (FilterChain(WEEK, name) for name in (b"orders/0", b"orders/1"))
    for chain in (one, other):
        chain.add([digest_of(b"key")], 0)
    mine, others = ([packed for _, _, packed in chain.take_changes()[0]] for chain in (one, other))
    assert digest_of(b"key") in FilterChain.restore(WEEK, mine, b"orders/0")
    with pytest.raises(StateError, match="belongs to another partition"):
        FilterChain.restore(WEEK, others, b"orders/0")


def test_a_filter_that_stands_where_another_one_should_is_refused() -> None:
    chain = FilterChain(WEEK)
    chain.add(digests("k", 101), 0)
    first, _ = (packed for _, _, packed in chain.take_changes()[0])
    with pytest.raises(StateError, match="it is there twice"):
        FilterChain.restore(WEEK, [first, first])


def test_a_filter_that_was_stored_by_an_earlier_version_can_be_read() -> None:
    """The bits in the file are never recomputed: they mean the same for ever, in every process."""
    chain = FilterChain.restore(WEEK, [GOLDEN.read_bytes()])
    assert all(d in chain for d in digests("golden", 100))
    assert not any(d in chain for d in digests("other", 1_000))


def test_another_process_finds_what_this_one_has_added(tmp_path: Path) -> None:
    """Fails with Python's own hash, which is another one in every process."""
    chain = FilterChain(WEEK)
    chain.add([digest_of(b"here")], 0)
    (tmp_path / "filter").write_bytes(chain.take_changes()[0][0][2])
    program = (
        "import sys; from slackwater_messaging.receiving.filters import *; from pathlib import Path\n"
        "policy = FilterPolicy(capacity=1, error_rate=0.1)\n"
        "chain = FilterChain.restore(policy, [Path(sys.argv[1]).read_bytes()])\n"
        "print(digest_of(b'here') in chain, digest_of(b'elsewhere') in chain)"
    )
    run = [sys.executable, "-c", program, str(tmp_path / "filter")]
    assert subprocess.run(run, capture_output=True, check=True, text=True).stdout.split() == ["True", "False"]


@pytest.mark.parametrize(
    ("capacity", "error_rate"), [(1_000_000, 1e-4), (1_000_000, 1e-6), (10_000_000, 1e-6)]
)
def test_memory_is_what_the_documentation_says(capacity: int, error_rate: float) -> None:
    policy = FilterPolicy(capacity=capacity, error_rate=error_rate)
    page = (Path(__file__).parents[4] / "docs" / "receiving-messages.md").read_text()
    rate = f"{error_rate:.0e}".replace("e-0", "e-")
    assert f"| {capacity:,} | {rate} | {policy.memory_bytes / 1e6:.2g} MB |" in page


def test_memory_is_what_filters_take() -> None:
    policy = FilterPolicy(capacity=70_000, error_rate=1e-6)
    chain = FilterChain(policy)
    for day in range(8):
        chain.add(digests(str(day), 1), day * DAY_MS)
    taken = sum(len(packed) for _, _, packed in chain.take_changes()[0])
    assert taken == pytest.approx(policy.memory_bytes, rel=0.05)


def test_digests_that_were_joined_are_taken_apart() -> None:
    assert split_digests(b"".join(digests("a", 3))) == digests("a", 3)
    assert split_digests(b"") == []


@pytest.mark.parametrize(
    "values",
    [
        {"capacity": 0},
        {"windows": 0},
        {"error_rate": 0},
        {"error_rate": 1},
        {"remember": timedelta(0)},
        {"remember": timedelta(milliseconds=5)},
    ],
)
def test_a_policy_that_cannot_be_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        FilterPolicy(**{"capacity": 10, "error_rate": 0.1, **values})  # type: ignore[arg-type]
