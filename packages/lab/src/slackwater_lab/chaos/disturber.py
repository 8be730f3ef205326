"""Everything that a fault can do to the running system."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import psutil
import redis

from slackwater.dev.processes import ManagedProcess
from slackwater_lab.chaos.consumers import Consumers
from slackwater_lab.chaos.disk import Disk
from slackwater_lab.chaos.system import Part, System
from slackwater_lab.errors import NothingToDisturbError
from slackwater_lab.servers.proxy import TcpProxy

_STEP_SECONDS = 300.0
"""How long a sink may take to reach a step: Spark may just be starting."""
_ROLE_SECONDS = 300.0
_BOTH_SIDECARS = ["sidecar-1", "sidecar-2"]
_PROGRAMS = (*_BOTH_SIDECARS, "pipeline")
_MEMBERS = {"first consumers": 1, "second consumers": 2}
"""Their numbers."""
_ROUTES = ("connect", "sidecar", "pipeline", "consumers", "redis")


class Disturber:
    """Everything that a fault can do to the running system. Thread-safe; all methods block until done.

    Targets are parts: ``broker``, ``connect``, ``postgres``, ``redis``, ``sidecar-1``, ``sidecar-2``,
    ``pipeline``, ``output``, the server of the output's tables; ``both sidecars``, ``first consumers`` of
    each group and ``second consumers``; and processes of the pipeline: ``python worker``, ``python daemon``,
    ``executor`` (a JVM). Whatever dies is started again by a supervisor, as systemd or Kubernetes would.
    Routes: ``connect``, ``sidecar``, ``pipeline`` and ``consumers`` to Kafka, ``redis`` to Redis,
    ``partition``: Connect to the second broker.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._paused: dict[str, ManagedProcess] = {}

    def kill(self, target: str) -> None:
        """SIGKILL to all processes of parts, or to one process of the pipeline."""
        self._do(target, lambda it: it.kill())

    def pause(self, target: str) -> None:
        """SIGSTOP to all processes of parts, or to one process of the pipeline, until :meth:`resume`."""
        if target in _ROLES:
            self._paused[target] = self._one(target)
            self._paused[target].pause()
        else:
            self._do(target, lambda it: it.pause())

    def resume(self, target: str) -> None:
        """SIGCONT to what was paused; nothing happens when it is gone."""
        if target not in _ROLES:
            self._do(target, lambda it: it.resume())
        elif (process := self._paused.pop(target, None)) is not None:
            process.resume()

    def take_away(self, part: str) -> None:
        """SIGKILL to a part, which stays dead until :meth:`bring_back`."""
        self._system.parts[part].is_kept_down = True
        self.kill(part)

    def bring_back(self, part: str) -> None:
        self._system.parts[part].is_kept_down = False

    def kill_at(self, step: str, who: str = "sink") -> None:
        """One of them kills itself at a step of its work; returns when one has.

        ``who`` is the ``sink``, in the pipeline's driver, or any ``consumer`` that is to be exactly once.
        """
        system = self._system
        names = ["pipeline"] if who == "sink" else self._consumers.exactly_once
        controls = [system.control(name) for name in names]
        for control in controls:
            control.kill_at(step)
        has_died = system.wait(lambda: not all(each.deadly_step() for each in controls), _STEP_SECONDS)
        for control in controls:
            control.spare()
        if not has_died:
            raise NothingToDisturbError(f"{who} at step {step}", _STEP_SECONDS)

    def flush_redis(self) -> None:
        try:
            with redis.Redis(port=self._system.stack.redis.port, socket_timeout=5) as client:
                client.flushall()
        except redis.RedisError as error:
            raise NothingToDisturbError(f"Redis that answers ({error})", 0) from error

    def disk(self, of: str) -> Disk:
        """The disk of the ``pipeline``: checkpoint, index, Spark's local files; or of the ``lake``."""
        disk = self._system.output.disk if of == "lake" else self._system.disk
        if disk is None:
            raise NothingToDisturbError("a disk of the output", 0)
        return disk

    def move_clocks(self, offset: timedelta) -> None:
        """Wall clocks of sidecars and pipeline differ so much from the machine's from now on."""
        for name in _PROGRAMS:
            self._system.control(name).move_clock(offset)

    def network(self, action: Callable[[TcpProxy], None], *routes: str) -> None:
        """Does something to what passes on routes."""
        stack = self._system.stack
        for route in routes:
            if route == "redis":
                action(self._system.redis_proxy)
            elif route == "partition":
                action(stack.second_kafka.proxy("connect"))
            else:
                action(stack.kafka.proxy(route))
                action(stack.second_kafka.proxy(route))

    def heal(self) -> None:
        """Ends everything that lasts."""
        for role in list(self._paused):
            self.resume(role)
        for supervised in self._system.parts.values():
            supervised.is_kept_down = False
            supervised.do(lambda it: it.resume())
        self.network(lambda proxy: proxy.resume(), *_ROUTES)
        self.network(lambda proxy: proxy.delay(timedelta()), *_ROUTES)
        self.disk("pipeline").free()
        if self._system.output.disk is not None:
            self.disk("lake").free()
        self.move_clocks(timedelta())
        self._system.control("pipeline").spare()

    @property
    def _consumers(self) -> Consumers:
        consumers = self._system.consumers
        if consumers is None:
            raise NothingToDisturbError("a consumer", 0)
        return consumers

    def _do(self, target: str, action: Callable[[Part | ManagedProcess], None]) -> None:
        if target in _ROLES:
            action(self._one(target))
            return
        names = _BOTH_SIDECARS if target == "both sidecars" else [target]
        if target in _MEMBERS:
            names = self._consumers.numbered(_MEMBERS[target])
        for name in names:
            self._system.parts[name].do(action)

    def _one(self, role: str) -> ManagedProcess:
        """A process of the pipeline, as soon as there is one."""
        found: list[ManagedProcess] = []

        def look() -> bool:
            found[:] = self._system.program("pipeline").children(_ROLES[role])
            return bool(found)

        if not self._system.wait(look, _ROLE_SECONDS):
            raise NothingToDisturbError(role, _ROLE_SECONDS)
        return found[0]


def _is_python(process: psutil.Process, *, forks: bool) -> bool:
    """Says whether it is the process that Python workers are forked from, or one of them."""
    try:
        parent = process.parent()
        return parent is not None and _is_pyspark(process) and _is_pyspark(parent) != forks
    except psutil.Error:
        return False


def _is_executor(process: psutil.Process) -> bool:
    """Says whether it is an executor's JVM."""
    try:
        return "org.apache.spark.executor.CoarseGrainedExecutorBackend" in process.cmdline()
    except psutil.Error:
        return False


def _is_pyspark(process: psutil.Process) -> bool:
    command = " ".join(process.cmdline())
    return "pyspark.daemon" in command or "pyspark.worker" in command


_ROLES: dict[str, Callable[[psutil.Process], bool]] = {
    "python worker": partial(_is_python, forks=False),
    "python daemon": partial(_is_python, forks=True),
    "executor": _is_executor,
}
