"""Whatever ends a long-running command leaves a line in its log: one row per way, in processes of their own.

Ends of Spark's JVM: ``packages/slackwater/tests/pipeline``; of a sidecar's workers: ``sidecar/tests``.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("ending_child.py")
SECONDS = 300.0


@pytest.fixture(autouse=True)
def hangups() -> Iterator[None]:
    """SIGHUP means something to the children, also when the tests themselves run below ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def start(way: str, *options: str, **streams: int) -> subprocess.Popen[str]:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, CHILD, *options, "end", way]
    return subprocess.Popen(command, text=True, **{**pipes, **streams})  # type: ignore[call-overload,no-any-return]


def outcome(child: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and standard error."""
    with child:
        _, errors = child.communicate(timeout=SECONDS)
    return child.returncode, errors or ""


WAYS = [
    ("return", 0, ["the command ended: everything is processed"]),
    ("known error", 1, ["error: what happened; what helps"]),
    ("unknown error", 1, ["error: ValueError: unexpected"]),
    ("exit", 3, ["the command ended: SystemExit: 3"]),
    ("broken pipe", 1, ["the command ended: BrokenPipeError: [Errno 32] Broken pipe"]),
    ("thread", 0, ["thread listener ended: ValueError('of a thread')"]),
    ("crash", -signal.SIGSEGV, ["Fatal Python error: Segmentation fault"]),
]


@pytest.mark.parametrize(("way", "code", "lines"), WAYS)
def test_an_end_leaves_a_line(way: str, code: int, lines: Sequence[str]) -> None:
    """Of these, a broken pipe to another process and an exit from within were seen to leave none."""
    found, errors = outcome(start(way))
    assert found == code
    for line in lines:
        assert line in errors


@pytest.mark.parametrize(
    ("way", "line", "has_traceback"),
    [
        ("known error", "the command ended: InputError: what happened; what helps", False),
        ("unknown error", "the command ended: ValueError: unexpected", True),
        ("broken pipe", "the command ended: BrokenPipeError: [Errno 32] Broken pipe", True),
        ("thread", "thread listener ended: ValueError('of a thread')", True),
        ("exit", "the command ended: SystemExit: 3", True),
    ],
)
def test_a_log_of_its_own_has_the_line_too(tmp_path: Path, way: str, line: str, has_traceback: bool) -> None:
    """Seen to be missing there: the errors went to standard error only."""
    outcome(start(way, "--log-file", str(tmp_path / "log")))
    log = (tmp_path / "log").read_text()
    assert line in log
    assert ("Traceback" in log) is has_traceback


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)])
def test_a_signal_that_ends_it_is_named(sent: signal.Signals, code: int) -> None:
    """SIGHUP was seen to end it without a word, the others said nothing either."""
    child = start("wait")
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(sent)
    found, errors = outcome(child)
    assert found == code
    assert f"the command was asked to stop by {sent.name}" in errors
    assert f"the command ended: asked by {sent.name}" in errors


@pytest.mark.full
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_what_hangs_after_a_signal_is_left_as_after_a_kill(sent: signal.Signals, code: int) -> None:
    """Seen to continue for ever, in a library that waited for a server."""
    child = start("hang")
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(sent)
    found, errors = outcome(child)
    assert found == code
    assert "the command ended: it is left as after a kill" in errors
    assert "ending_child.py" in errors


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(sent: signal.Signals) -> None:
    child = start("hang")
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(sent)
    assert f"was asked to stop by {sent.name}" in child.stderr.readline()
    child.send_signal(sent)
    found, _ = outcome(child)
    assert found == -sent


def test_nohup_stays_in_force() -> None:
    command = ["nohup", sys.executable, str(CHILD), "end", "wait"]
    child = subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGHUP)
    child.send_signal(signal.SIGTERM)
    found, errors = outcome(child)
    assert found == 0
    assert "SIGHUP" not in errors
    assert "the command ended: asked by SIGTERM" in errors


def test_output_that_nobody_reads_is_named_in_the_log() -> None:
    """Seen to end with exit code 1 and nothing else."""
    child = start("print to nobody")
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    child.stdin.close()
    errors = child.stderr.read()
    child.stderr.close()
    assert child.wait(SECONDS) == 1
    assert "the command ended: BrokenPipeError" in errors
    assert "error: " not in errors


def test_a_log_whose_disk_is_full_hides_neither_error_nor_exit_code() -> None:
    found, errors = outcome(start("known error", "--log-file", "/dev/full"))
    assert found == 1
    assert "error: what happened; what helps" in errors


def test_a_full_disk_behind_standard_error_does_not_change_the_exit_code() -> None:
    with Path("/dev/full").open("w") as full:
        assert outcome(start("known error", stderr=full.fileno()))[0] == 1
        assert outcome(start("return", stderr=full.fileno()))[0] == 0
