"""The unprivileged account that PostgreSQL needs when we are root, and what it can reach."""

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slackwater_devstack.errors import missing_prerequisite

CANDIDATES = ("postgres", "nobody")
CHECK_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this machine."""

    name: str
    uid: int
    gid: int


def unprivileged_account() -> Account | None:
    """The account that servers refusing root run as; None when we are an ordinary user already.

    Raises:
        DevStackUnavailableError: we are root and the machine has no such account.
    """
    if os.geteuid() != 0:
        return None
    for name in CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name, entry.pw_uid, entry.pw_gid)
    what = "an account that is not root (postgres or nobody), because PostgreSQL refuses to run as root,"
    raise missing_prerequisite(what, "this machine has neither", "create one or run as an ordinary user")


def run_as(
    account: Account | None, argv: Sequence[str], *, cwd: Path = Path("/"), timeout_seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run a short command as that account and return its output, standard error included.

    Raises:
        OSError: the command cannot be executed by that account.
        subprocess.TimeoutExpired: it took too long and was killed.
    """
    who: dict[str, object] = {}
    if account is not None:
        who = {"user": account.uid, "group": account.gid, "extra_groups": []}
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


def can_write(account: Account | None, folder: Path) -> bool:
    """Says whether that account reaches the folder and may write into it (tried, not computed from modes)."""
    result = run_as(account, ["test", "-w", str(folder)], timeout_seconds=CHECK_TIMEOUT_SECONDS)
    return result.returncode == 0
