"""Environments of peers: made once by uv from pinned requirements, kept in the user's cache."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slackwater_bench.peers.registry import Peer
from slackwater_devstack import DevStackError, JarSet, cache_folder
from slackwater_devstack.jars import ensure_jars, ivy_fetch, parse_manifest
from slackwater_testing.errors import RunFailedError
from slackwater_testing.workloads.workload import REPOSITORY

REQUIREMENTS = "requirements.lock"
INSTALL_SECONDS = 900
COMPLETE = ".complete"
"""In an environment that was installed to the end."""
TAIL_LINES = 5

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Installed:
    """The interpreter and the jars that a peer's program is started with."""

    python: Path
    jars: Path | None = None


def install(peer: Peer, say: Say, cache: Path | None = None) -> Installed:
    """The environment of a peer, made if the cache has it not. Safe in several processes; blocks them.

    Raises:
        RunFailedError: something cannot be downloaded or built.
    """
    root = (cache or cache_folder()) / "peers"
    folder = root / f"{peer.name}-{fingerprint(peer)}"
    root.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock")):
        if not (folder / COMPLETE).exists():
            say(f"{peer.title}: installing into {folder}")
            _make(peer, folder)
            (folder / COMPLETE).touch()
    return Installed(folder / "bin" / "python", _jars(peer, root, say) if peer.has_jars else None)


def fingerprint(peer: Peer) -> str:
    """Changes whenever something else would be installed."""
    digest = hashlib.sha256(sys.version.encode())
    digest.update((peer.folder / REQUIREMENTS).read_bytes())
    return digest.hexdigest()[:12]


def find_uv() -> Path | None:
    """The uv of this repository, else of PATH."""
    own = REPOSITORY / ".tools" / "bin" / "uv"
    if own.exists():
        return own
    found = shutil.which("uv")
    return Path(found) if found else None


def _make(peer: Peer, folder: Path) -> None:
    uv = find_uv()
    if uv is None:
        raise RunFailedError(
            f"{peer.name} cannot be installed", "uv is neither in .tools nor on PATH; run `make setup`"
        )
    shutil.rmtree(folder, ignore_errors=True)
    _run(peer, [str(uv), "venv", "--quiet", "--python", sys.executable, str(folder)])
    lock = peer.folder / REQUIREMENTS
    install_it = [str(uv), "pip", "install", "--quiet", "--require-hashes", "--requirements", str(lock)]
    _run(peer, install_it, {"VIRTUAL_ENV": str(folder)})


def _run(peer: Peer, command: list[str], environment: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _not_installed(peer, str(error)) from error
    if done.returncode != 0:
        tail = " / ".join(done.stderr.strip().splitlines()[-TAIL_LINES:])
        raise RunFailedError(
            f"{peer.name} cannot be installed", tail or f"uv ended with exit code {done.returncode}"
        )


def _jars(peer: Peer, root: Path, say: Say) -> Path:
    manifest = (peer.folder / "jars.sha256").read_text()
    key = hashlib.sha256(manifest.encode()).hexdigest()[:12]
    wanted = JarSet(root / f"{peer.name}-jars-{key}", parse_manifest(manifest))
    try:
        ensure_jars(wanted, ivy_fetch(peer.folder / "ivy.xml"), say)
    except DevStackError as error:
        raise _not_installed(peer, str(error)) from error
    return wanted.folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file unlocks


def _not_installed(peer: Peer, reason: str) -> RunFailedError:
    return RunFailedError(f"{peer.name} cannot be installed", reason)
