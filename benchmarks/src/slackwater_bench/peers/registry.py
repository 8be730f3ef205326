"""The peers: what each is, the settings that it runs with, and the environment that uv installs for it."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from slackwater.dev import JarSet, cache_folder
from slackwater.dev.java import ensure_jars, ivy_fetch, parse_manifest
from slackwater.protocol import SlackwaterError
from slackwater_lab.errors import RunFailedError
from slackwater_lab.workloads.workload import REPOSITORY

PROGRAMS = Path(__file__).parents[3] / "peers"
SLACKWATER = "slackwater"
REQUIREMENTS = "requirements.lock"
INSTALL_SECONDS = 900
COMPLETE = ".complete"
"""In an environment that was installed to the end."""
TAIL_LINES = 5

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A stream processor that maintains the orders view.

    Its folder has ``program.py``, ``requirements.lock`` with hashes, and, when it needs jars, ``ivy.xml``
    with their coordinates and ``jars.sha256`` with their checksums.
    """

    name: str
    title: str
    settings: str
    """For people: what was set, beside the defaults."""
    environment: Mapping[str, str] = field(default_factory=dict)
    has_jars: bool = False

    @property
    def folder(self) -> Path:
        """The folder of its program."""
        return PROGRAMS / self.name

    @property
    def output(self) -> str:
        """The topic that its documents go to."""
        return "orders_with_lines" if self.name == SLACKWATER else f"documents.{self.name}"


PEERS: tuple[Peer, ...] = tuple(
    Peer(**fields)
    for fields in tomllib.loads((resources.files("slackwater_bench") / "peers" / "peers.toml").read_text())[
        "peers"
    ]
)


def peers_named(names: Sequence[str]) -> tuple[Peer, ...]:
    """These peers in the order of the names; all of them for none.

    Raises:
        RunFailedError: there is no such peer.
    """
    known = {peer.name: peer for peer in PEERS}
    for name in names:
        if name not in known:
            raise RunFailedError(f"no peer {name!r}", f"there are {', '.join(known)}")
    return tuple(known[name] for name in names) or PEERS


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
    except SlackwaterError as error:
        raise _not_installed(peer, str(error)) from error
    return wanted.folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file unlocks


def _not_installed(peer: Peer, reason: str) -> RunFailedError:
    return RunFailedError(f"{peer.name} cannot be installed", reason)
