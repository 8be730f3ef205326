"""An environment that holds what the wheels bring, and nothing of this repository."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = ROOT / ".tools" / "bin" / "uv"
LOCK = ROOT / "requirements.lock"
"""What is in it, `make setup` has left in the cache."""
SECONDS = 600.0


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheels of all members."""
    folder = tmp_path_factory.mktemp("wheels")
    build = (sys.executable, "-m", "infra.wheels.build", folder)
    subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return folder


def attempt(*command: str | Path) -> "subprocess.CompletedProcess[str]":
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SLACKWATER"))
    }
    return subprocess.run(
        command, env=kept, cwd="/", capture_output=True, text=True, timeout=SECONDS, check=False
    )


@pytest.fixture(scope="session")
def ran() -> Callable[..., str]:
    """Runs a command as a user would who knows nothing of this repository; returns what it prints."""

    def run(*command: str | Path) -> str:
        done = attempt(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def install(wheels: Path, ran: Callable[..., str], tmp_path: Path) -> Callable[[str], Path]:
    """Installs a member into an environment of its own; returns the folder of its commands."""

    def make(member: str) -> Path:
        environment = tmp_path / "environment"
        ran(UV, "venv", "--quiet", "--python", sys.executable, environment)
        commands = environment / "bin"
        where = ("--python", commands / "python", "--find-links", wheels, "--constraint", LOCK)
        install = (UV, "pip", "install", "--quiet", *where, member)
        # An index would be asked for what is there already, which may mean to build PySpark again.
        if attempt(*install, "--offline").returncode != 0:
            ran(*install)
        return commands

    return make
