"""Starts processes, recognises them later, and ends them without ever hitting another one.

Root starts PostgreSQL, which refuses root, as an unprivileged account of this machine. A program counts only
after it was run.
"""

import contextlib
import json
import os
import pwd
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path

import psutil

from slackwater.dev import _launcher
from slackwater.protocol import ConfigError, StateError, UnavailableError

_CREATION_TOLERANCE_SECONDS = 2.0
"""The kernel counts from boot; an adjusted wall clock moves the computed time of creation a little."""
_UNPRIVILEGED = ("postgres", "nobody")
_CHECK_SECONDS = 30.0
_ANSWER_SECONDS = 60.0


def wrong_setting(setting: str, value: str, expected: str) -> ConfigError:
    """Returns the error for a setting whose value cannot be used."""
    return ConfigError(f"setting {setting} is {value}", f"expected {expected}")


def missing_prerequisite(what: str, found: str, hint: str) -> UnavailableError:
    """Returns the error for something that this machine must have, given what was found instead."""
    return UnavailableError(f"{what} is needed, but {found}", hint)


def not_running(server: str, operation: str) -> StateError:
    """Returns the error for an operation that needs a running server."""
    return StateError(f"cannot {operation} {server}: it is not running", "call start() first")


def failed_start(server: str, reason: str, log_path: Path, log_tail: str) -> UnavailableError:
    """Returns the error for a server that did not become ready."""
    return UnavailableError(f"{server} did not start: {reason}", with_tail(f"log: {log_path}", log_tail))


def with_tail(hint: str, log_tail: str) -> str:
    """Returns a hint with the last lines of what a server or a download said, which may be none."""
    return f"{hint}; its last lines:\n{log_tail}" if log_tail else hint


class Lifetime(Enum):
    """Time for which a server lives."""

    EMBEDDED = "embedded"
    """Not longer than the process that started it, however that one ends (Linux)."""
    DETACHED = "detached"
    """Until it is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A program to execute, and as whom."""

    argv: tuple[str, ...]
    """Absolute path of the program and its arguments."""
    cwd: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of this process."""
    account: pwd.struct_passwd | None = None
    """Account to become; None: stay who we are."""
    death_signal: signal.Signals = signal.SIGKILL
    """Sent by the kernel when the parent dies (embedded only)."""


@dataclass(frozen=True, kw_only=True)
class ManagedProcess:
    """A server's process and its children, told from another one that got the same number later.

    Every operation first checks that it still is that process.
    """

    pid: int
    created_at: datetime
    command: tuple[str, ...] = ()
    """Its argument list; empty: unknown, not compared."""

    def find(self) -> psutil.Process | None:
        """Returns the living process; None when it ended, is a zombie, or its number was reused."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            if (
                process.status() != psutil.STATUS_ZOMBIE
                and abs(process.create_time() - self.created_at.timestamp()) <= _CREATION_TOLERANCE_SECONDS
                and self.command in ((), tuple(process.cmdline()))
            ):
                return process
        return None

    @property
    def is_alive(self) -> bool:
        """True if it runs (paused counts)."""
        return self.find() is not None

    @property
    def is_paused(self) -> bool:
        """True if it is stopped by a signal."""
        process = self.find()
        with contextlib.suppress(psutil.NoSuchProcess):
            return process is not None and process.status() == psutil.STATUS_STOPPED
        return False

    def stop(self, stop_signal: signal.Signals, patience: timedelta) -> bool:
        """Ask to end, then insist; whether it ended by itself.

        Returns when the whole tree is gone; idempotent.
        """
        process = self.find()
        if process is None:
            _reap(self.pid)
            return False
        tree = _tree(process)
        _signal_all([process], stop_signal)
        _signal_all(tree, signal.SIGCONT)
        in_order = True
        try:
            process.wait(patience.total_seconds())
        except psutil.TimeoutExpired:
            in_order = False
        _kill_all(tree)
        return in_order

    def kill(self) -> None:
        """SIGKILL to the whole tree, as a crash would; returns when it is gone; idempotent."""
        process = self.find()
        if process is not None:
            _kill_all(_tree(process))
        _reap(self.pid)

    def settled(self) -> "ManagedProcess":
        """The same process by the argument list that it has now, after it became what it was to execute.

        Raises:
            psutil.NoSuchProcess: it has ended.
        """
        return identify(self.pid)

    def pause(self) -> None:
        """SIGSTOP to the whole tree."""
        process = self.find()
        if process is not None:
            _signal_all([process], signal.SIGSTOP)
            _signal_all(_tree(process)[1:], signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT to the whole tree."""
        process = self.find()
        if process is not None:
            _signal_all(_tree(process), signal.SIGCONT)


def identify(pid: int) -> ManagedProcess:
    """Returns a process that runs now, with its argument list.

    Raises:
        psutil.NoSuchProcess: it has ended.
    """
    process = psutil.Process(pid)
    created = datetime.fromtimestamp(process.create_time(), UTC)
    return ManagedProcess(pid=pid, created_at=created, command=tuple(process.cmdline()))


def launch(order: Launch, log_path: Path, lifetime: Lifetime) -> ManagedProcess:
    """Start a process in a session of its own, its output appended to the log.

    Thread-safe. The fork happens on one thread that lives as long as this process: the kernel's
    parent-death signal goes by the thread that forked, not by the process.

    Raises:
        OSError: the process could not be created.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    wanted = {
        "argv": order.argv,
        "cwd": str(order.cwd),
        "account": None if order.account is None else [order.account.pw_uid, order.account.pw_gid],
        "parent": os.getpid() if lifetime is Lifetime.EMBEDDED else None,
        "death_signal": int(order.death_signal),
    }
    argv = [sys.executable, "-I", "-S", str(_launcher.__file__), json.dumps(wanted)]
    environment = {**os.environ, **order.environment}
    pid = _forking_thread().run(lambda: _spawn(argv, environment, log_path))
    created = psutil.Process(pid).create_time()
    return ManagedProcess(pid=pid, created_at=datetime.fromtimestamp(created, UTC))


def unprivileged_account() -> pwd.struct_passwd | None:
    """The account that servers refusing root run as; None when we are an ordinary user already.

    Raises:
        UnavailableError: we are root and the machine has no such account.
    """
    if os.geteuid() != 0:
        return None
    for name in _UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return entry
    what = "an account that is not root (postgres or nobody), because PostgreSQL refuses to run as root,"
    raise missing_prerequisite(what, "this machine has neither", "create one or run as an ordinary user")


def run_as(
    account: pwd.struct_passwd | None, argv: Sequence[str], *, cwd: Path = Path("/"), timeout_seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run a short command as that account and return its output, standard error included.

    Raises:
        OSError: the command cannot be executed by that account.
        subprocess.TimeoutExpired: it took too long and was killed.
    """
    who: dict[str, object] = {}
    if account is not None:
        who = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        list(argv),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C"},
        timeout=timeout_seconds,
        **who,
    )


@dataclass(frozen=True, slots=True)
class Version:
    """The version of a program."""

    text: str
    """As the program says itself, for example ``17.0.15``."""
    major: int
    minor: int = 0
    """Only of Redis."""


@dataclass(frozen=True, slots=True)
class InstalledProgram:
    """A program that was seen to run."""

    path: Path
    version: Version


def parse_version(output: str, pattern: re.Pattern[str]) -> Version | None:
    """Returns the version in what a program prints; None when there is none."""
    match = pattern.search(output)
    if match is None:
        return None
    found = match.groupdict()
    return Version(found["text"], int(found["major"]), int(found.get("minor", 0)))


def version_of(
    path: Path, flag: str, pattern: re.Pattern[str], account: pwd.struct_passwd | None = None
) -> Version | str:
    """Returns the version a program says it has, or what is wrong with the program."""
    try:
        result = run_as(account, [str(path), flag], timeout_seconds=_ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run ({error})"
    version = parse_version(result.stdout, pattern) if result.returncode == 0 else None
    return version or "does not say its version"


def can_write(account: pwd.struct_passwd | None, folder: Path) -> bool:
    """Returns whether that account may write into the folder (tried, not computed from modes)."""
    result = run_as(account, ["test", "-w", str(folder)], timeout_seconds=_CHECK_SECONDS)
    return result.returncode == 0


def _spawn(argv: list[str], environment: Mapping[str, str], log_path: Path) -> int:
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log_path), append, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    defaults = [signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGHUP]
    return os.posix_spawn(
        argv[0], argv, environment, file_actions=actions, setsid=True, setsigdef=defaults, setsigmask=[]
    )


class _ForkingThread:
    """Runs calls one after another on a daemon thread that never ends by itself."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._calls: queue.SimpleQueue[tuple[Callable[[], int], Future[int]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="devstack-fork", daemon=True).start()

    def run(self, call: Callable[[], int]) -> int:
        future: Future[int] = Future()
        self._calls.put((call, future))
        return future.result()

    def _work(self) -> None:
        while True:
            call, future = self._calls.get()
            try:
                future.set_result(call())
            except OSError as error:
                future.set_exception(error)


_forking: list[_ForkingThread] = []


_forking_lock = threading.Lock()


def _forking_thread() -> _ForkingThread:
    with _forking_lock:
        if not _forking or _forking[0].owner != os.getpid():  # a fork leaves the thread behind
            _forking[:] = [_ForkingThread()]
        return _forking[0]


def _tree(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return [process]


def _signal_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)  # psutil refuses if the number was reused


def _kill_all(tree: list[psutil.Process]) -> None:
    _signal_all(tree, signal.SIGKILL)
    psutil.wait_procs(tree, timeout=10)


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
