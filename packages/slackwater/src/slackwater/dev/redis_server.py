"""Redis without persistence."""

from typing import TYPE_CHECKING, ClassVar

from slackwater.dev.processes import Launch
from slackwater.dev.programs import InstalledProgram, find_redis
from slackwater.dev.server import LOOPBACK, Server

if TYPE_CHECKING:
    import redis


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

    def _client(self) -> "redis.Redis":
        import redis

        return redis.Redis(host=LOOPBACK, port=self.port, socket_timeout=1.0)

    def _prepare(self) -> None:
        (self.folder / "redis").mkdir(parents=True, exist_ok=True)
        self._program = self._find_program()
        self.version = self._program.version.text

    def _find_program(self) -> InstalledProgram:
        return find_redis()

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

        client = self._client()
        try:
            return bool(client.ping())
        except (redis.exceptions.ConnectionError, redis.exceptions.BusyLoadingError):
            return False
        finally:
            client.close()
