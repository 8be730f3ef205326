import subprocess
from pathlib import Path

import pytest

from slackwater.protocol import SystemClock
from slackwater_bench.comparison import Compared, Verdict, compare_point
from slackwater_bench.environment import Environment, installed
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_lab.errors import RunFailedError

HIGHER, LOWER = Direction.HIGHER, Direction.LOWER
BASE, HEAD = Environment(Path("/base/python"), "base"), Environment(Path("/head/python"), "head")


@pytest.mark.parametrize(
    ("base", "head", "direction", "verdict"),
    [
        ([100, 101, 102], [99, 100, 101], HIGHER, Verdict.SAME),
        ([100, 101, 102], [120, 121, 122], HIGHER, Verdict.BETTER),
        ([100, 101, 102], [80, 81, 82], HIGHER, Verdict.WORSE),
        ([100, 101, 102], [120, 121, 122], LOWER, Verdict.WORSE),
        ([100, 101, 102], [80, 81, 82], LOWER, Verdict.BETTER),
        ([0, 0, 0], [0, 0, 0], LOWER, Verdict.SAME),
        ([0, 0, 0], [5, 5, 5], LOWER, Verdict.WORSE),
        ([5, 5, 5], [0, 0, 0], HIGHER, Verdict.WORSE),
    ],
)
def test_the_direction_decides_what_a_change_means(
    base: list[float], head: list[float], direction: Direction, verdict: Verdict
) -> None:
    assert Compared(tuple(base), tuple(head), direction, 0.1).verdict is verdict


def test_a_change_within_the_spread_is_none() -> None:
    noisy = Compared((70.0, 100.0, 130.0), (60.0, 75.0, 90.0), HIGHER, 0.1)
    assert noisy.spread == pytest.approx(0.6)
    assert noisy.verdict is Verdict.SAME
    assert Compared((99.0, 100.0, 101.0), (74.0, 75.0, 76.0), HIGHER, 0.1).verdict is Verdict.WORSE


def test_twice_and_half_are_equally_far() -> None:
    assert Compared((100.0,), (112.0,), HIGHER, 0.1).verdict is Verdict.BETTER
    assert Compared((112.0,), (100.0,), HIGHER, 0.1).verdict is Verdict.WORSE


def test_the_ratio_is_that_of_the_medians() -> None:
    compared = Compared((1.0, 10.0, 11.0), (5.0, 20.0, 21.0), HIGHER, 0.1)
    assert compared.ratio == 2.0


class Recorder:
    """A scenario's function that notes whom it measured."""

    def __init__(self, failing: str = "") -> None:
        self.order: list[str] = []
        self._failing = failing

    def __call__(self, parameters: Parameters, context: RunContext) -> Measured:
        self.order.append(context.environment.label)
        if context.environment.label == self._failing:
            raise RunFailedError("probe sink", "No module named 'slackwater.outputs'")
        return Measured(100.0 + len(self.order))


def scenario(run: Recorder) -> Scenario:
    return Scenario(
        name="x",
        version=1,
        unit="things/s",
        direction=HIGHER,
        measures="Things.",
        why="To test.",
        points=({},),
        quick_points=({},),
        run=run,
    )


@pytest.fixture
def context() -> RunContext:
    return RunContext(environment=HEAD, clock=SystemClock(), say=lambda _: None)


def test_runs_of_base_and_head_alternate(context: RunContext) -> None:
    run = Recorder()
    found = compare_point(scenario(run), {}, (BASE, HEAD), 3, context)
    assert run.order == ["base", "head"] * 3
    assert found.compared is not None
    assert found.compared.base == (101.0, 103.0, 105.0)
    assert found.compared.head == (102.0, 104.0, 106.0)


def test_a_base_without_what_is_measured_is_said_and_not_judged(context: RunContext) -> None:
    found = compare_point(scenario(Recorder(failing="base")), {}, (BASE, HEAD), 3, context)
    assert found.compared is None
    assert "base cannot run it: probe sink: No module named" in str(found)


def test_a_head_that_cannot_run_it_is_an_error(context: RunContext) -> None:
    with pytest.raises(RunFailedError):
        compare_point(scenario(Recorder(failing="head")), {}, (BASE, HEAD), 1, context)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    setup = "setup:\n\t@mkdir -p .venv/bin && touch .venv/bin/python && git rev-parse HEAD > .venv/commit\n"
    (root / "Makefile").write_text(setup)
    for command in (
        ["git", "init", "-q"],
        ["git", "add", "."],
        ["git", "-c", "user.name=x", "-c", "user.email=x@y", "commit", "-q", "-m", "first"],
    ):
        subprocess.run(command, cwd=root, check=True)
    return root


def worktrees(root: Path) -> int:
    listed = subprocess.run(["git", "worktree", "list"], cwd=root, check=True, capture_output=True, text=True)
    return len(listed.stdout.splitlines())


def test_the_base_is_installed_in_a_worktree_of_its_own_and_removed(repository: Path) -> None:
    with installed("HEAD", lambda _: None, repository) as base:
        assert base.python.exists()
        assert repository not in base.python.parents
        assert worktrees(repository) == 2
    assert not base.python.exists()
    assert worktrees(repository) == 1


def test_an_unknown_base_is_named(repository: Path) -> None:
    with (
        pytest.raises(RunFailedError, match="base nowhere: looking it up failed"),
        installed("nowhere", lambda _: None, repository),
    ):
        pass


def test_a_base_that_does_not_install_says_why(repository: Path) -> None:
    (repository / "Makefile").write_text("setup:\n\t@echo no java here; exit 3\n")
    subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x@y", "commit", "-q", "-am", "second"],
        cwd=repository,
        check=True,
    )
    with (
        pytest.raises(RunFailedError, match="no java here"),
        installed("HEAD", lambda _: None, repository),
    ):
        pass
    assert worktrees(repository) == 1
