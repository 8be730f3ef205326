"""Another commit of this repository, checked out and installed in a folder of its own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slackwater_bench.errors import BaseUnavailableError
from slackwater_bench.subject import Subject
from slackwater_testing.workloads.pipelines import REPOSITORY

SETUP_SECONDS = 900.0
SHOWN_CHARACTERS = 2_000


@contextmanager
def installed(revision: str, say: Callable[[str], None], root: Path = REPOSITORY) -> Iterator[Subject]:
    """The commit as a subject: a git worktree with its own ``make setup``; removed with the block.

    Raises:
        BaseUnavailableError: there is no such commit, or it does not install.
    """
    commit = _run(
        revision, "looking it up", ["git", "rev-parse", "--short=12", f"{revision}^{{commit}}"], root
    )
    with tempfile.TemporaryDirectory(prefix="slackwater-base-", ignore_cleanup_errors=True) as temporary:
        tree = Path(temporary) / "tree"
        _run(revision, "the worktree", ["git", "worktree", "add", "--detach", str(tree), commit], root)
        try:
            say(f"installing base {commit}; this takes a minute or two")
            _run(revision, "make setup", ["make", "setup", f"PYTHON={_outer_python()}"], tree)
            yield Subject(tree / ".venv" / "bin" / "python", f"base {commit}")
        finally:
            subprocess.run(
                ["git", "worktree", "remove", "--force", str(tree)],
                cwd=root,
                check=False,
                capture_output=True,
            )


def _outer_python() -> str:
    """The interpreter that this environment was made from."""
    return str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")


def _run(revision: str, step: str, command: list[str], folder: Path) -> str:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "MAKEFLAGS")
    }
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SETUP_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise BaseUnavailableError(revision, step, f"no end within {SETUP_SECONDS:g} s") from None
    if done.returncode != 0:
        raise BaseUnavailableError(revision, step, done.stdout[-SHOWN_CHARACTERS:].strip())
    return done.stdout.strip()
