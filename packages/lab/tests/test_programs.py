"""Programs that run beside a test."""

import sys
import threading
from pathlib import Path

import pytest

from slackwater.protocol import SystemClock
from slackwater_lab.errors import ProgramEndedError, RunFailedError
from slackwater_lab.programs import Program, last_words


@pytest.fixture
def failing(tmp_path: Path) -> Program:
    return Program("sidecar", lambda: (sys.executable, "-m", "slackwater", "no-such-command"), tmp_path)


def check_until_it_ends(program: Program) -> None:
    clock, pause = SystemClock(), threading.Event()
    deadline = clock.monotonic() + 900
    while clock.monotonic() < deadline:
        program.check()
        pause.wait(0.05)


def test_the_command_is_told_before_the_start(failing: Program) -> None:
    assert list(failing.command[2:]) == ["slackwater", "no-such-command"]


def test_a_program_that_ended_is_reported_with_its_last_lines(failing: Program) -> None:
    failing.start()
    with pytest.raises(ProgramEndedError) as caught:
        check_until_it_ends(failing)
    assert "no-such-command" in caught.value.last_words
    assert str(failing.log) in str(caught.value)
    failing.stop()


def test_a_program_that_never_started_is_reported_too(failing: Program) -> None:
    with pytest.raises(ProgramEndedError):
        failing.check()
    failing.stop()


def test_a_program_can_be_paused_killed_and_started_again(tmp_path: Path) -> None:
    program = Program("sleeper", lambda: (sys.executable, "-c", "import time; time.sleep(600)"), tmp_path)
    program.start()
    first = program.pid
    program.pause()
    paused = program.pid
    program.kill()
    killed = program.pid
    program.start()
    again = program.pid
    program.stop()
    assert first is not None
    assert (paused, killed, program.pid) == (first, None, None)
    assert again not in (None, first)


@pytest.mark.parametrize("code", [0, 3])
def test_a_program_can_be_waited_for(tmp_path: Path, code: int) -> None:
    program = Program("ending", lambda: (sys.executable, "-c", f"raise SystemExit({code})"), tmp_path)
    program.start()
    assert program.wait(600) == code


def test_a_program_that_does_not_end_is_told(tmp_path: Path) -> None:
    program = Program("sleeper", lambda: (sys.executable, "-c", "import time; time.sleep(600)"), tmp_path)
    program.start()
    with pytest.raises(RunFailedError, match="did not end within"):
        program.wait(0.01)
    program.kill()


def test_the_error_is_shown_rather_than_what_libraries_say_afterwards() -> None:
    lines = ["starting", "error: no", "       because", " - leaked", "noise"]
    assert last_words(lines) == ["error: no", "       because"]


def test_without_an_error_the_last_lines_are_shown() -> None:
    assert last_words([str(number) for number in range(100)])[-1] == "99"
