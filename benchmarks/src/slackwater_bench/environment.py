"""Environments in which Slackwater is installed and measured: this one, or that of another commit."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slackwater_lab.errors import RunFailedError
from slackwater_lab.workloads.workload import REPOSITORY

SETUP_SECONDS = 900.0
SHOWN_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python environment with a Slackwater in it, used through its command and through probes.

    A probe is a script that times a part of the product; it lies in the folder ``probes`` of the member that
    the part belongs to and runs in any environment, so that another commit can be measured with the probe of
    this one.
    """

    python: Path
    """The environment's interpreter."""
    label: str = "head"

    @classmethod
    def here(cls) -> "Environment":
        """The environment of this process."""
        return cls(Path(sys.executable))

    def command(self, *arguments: str) -> list[str]:
        """The ``slackwater`` command of this environment."""
        return [str(self.python), "-m", "slackwater", *arguments]

    def probe(self, path: str, *arguments: object) -> list[str]:
        """The command line of a probe.

        Args:
            path: The script, below the repository.
            arguments: The script's docstring lists them.
        """
        return [str(self.python), "-P", str(REPOSITORY / path), *map(str, arguments)]


def run_probe(environment: Environment, path: str, *arguments: object, seconds: float = 300.0) -> Any:
    """Runs a probe to its end and returns what it found.

    Raises:
        RunFailedError: it failed (another commit may lack what the probe needs), or takes longer.
    """
    what = f"probe {path} in the environment of {environment.label}"
    command = environment.probe(path, *arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise RunFailedError(what, f"did not end within {seconds:g} s") from None
    if done.returncode != 0:
        raise RunFailedError(what, f"exit code {done.returncode}:\n{done.stderr[-1500:]}")
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def installed(revision: str, say: Callable[[str], None], root: Path = REPOSITORY) -> Iterator[Environment]:
    """The environment of another commit: a git worktree with its own ``make setup``; removed with the block.

    Raises:
        RunFailedError: there is no such commit, or it does not install.
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
            yield Environment(tree / ".venv" / "bin" / "python", f"base {commit}")
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
        raise RunFailedError(f"base {revision}", f"{step}: no end within {SETUP_SECONDS:g} s") from None
    if done.returncode != 0:
        raise RunFailedError(f"base {revision}", f"{step} failed:\n{done.stdout[-SHOWN_CHARACTERS:].strip()}")
    return done.stdout.strip()
