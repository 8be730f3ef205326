"""Builds the wheels of all members: ``python -m infra.wheels.build dist``; same sources, same bytes."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIME = "1577836800"
"""What the files of a wheel are dated, in seconds; their true times would make each wheel another one."""


def members(root: Path = ROOT) -> list[Path]:
    """Returns the folders of the members of a repository."""
    found = [*root.glob("packages/*/pyproject.toml"), *root.glob("*/pyproject.toml")]
    return sorted(path.parent for path in found)


def build_wheels(target: Path, root: Path = ROOT) -> list[Path]:
    """Builds the wheels of all members of a repository, with this environment's build backend.

    Raises:
        subprocess.CalledProcessError: a member cannot be built; standard error says why.
    """
    target.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda member: _build(member, target.absolute()), members(root)))
    return sorted(target.glob("*.whl"))


def _build(member: Path, target: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": TIME}
    subprocess.run(command, cwd=member, env=environment, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    for _wheel in build_wheels(Path(sys.argv[1])):
        sys.stdout.write(f"{_wheel}\n")
