"""Everything that a fault can do to the running system."""

import contextlib
import functools
from collections.abc import Callable, Iterable
from datetime import timedelta

import psutil
import redis

from slackwater.dev.processes import ManagedProcess
from slackwater_lab.chaos.consumers import Consumers
from slackwater_lab.chaos.disk import Disk
from slackwater_lab.chaos.system import System
from slackwater_lab.errors import NothingToDisturbError
from slackwater_lab.servers.proxy import TcpProxy

_STEP_SECONDS = 300.0
"""How long a sink may take to reach a step: Spark may just be starting."""
_ROLE_SECONDS = 300.0
_PROGRAMS = ("sidecar-1", "sidecar-2", "pipeline")


class Disturber:
    """Everything that a fault can do to the running system. Thread-safe; all methods block until done.

    Parts: ``broker``, ``connect``, ``postgres``, ``redis``, ``sidecar-1``, ``sidecar-2``, ``pipeline``, and
    ``output``, the server of the output's tables; members of consumer groups by their numbers.
    Whatever dies is started again by a supervisor, as systemd or Kubernetes would. Routes: ``connect``,
    ``sidecar``, ``pipeline`` and ``consumers`` to Kafka, ``redis`` to Redis, ``partition``: Connect to the
    second broker.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._paused: dict[str, ManagedProcess] = {}

    def kill(self, part: str) -> None:
        """SIGKILL to a part and all its processes."""
        self._system.parts[part].do(lambda it: it.kill())

    def take_away(self, part: str) -> None:
        """SIGKILL to a part, which stays dead until :meth:`bring_back`."""
        self._system.parts[part].is_kept_down = True
        self.kill(part)

    def bring_back(self, part: str) -> None:
        """Lets the supervisor start the part again."""
        self._system.parts[part].is_kept_down = False

    def pause(self, part: str) -> None:
        """SIGSTOP to a part and all its processes."""
        self._system.parts[part].do(lambda it: it.pause())

    def resume(self, part: str) -> None:
        """SIGCONT after :meth:`pause`."""
        self._system.parts[part].do(lambda it: it.resume())

    def kill_one(self, role: str) -> None:
        """SIGKILL to one process of the pipeline: ``worker``, ``daemon`` (Python), ``executor`` (JVM)."""
        self._one(role).kill()

    def pause_one(self, role: str) -> None:
        """SIGSTOP to one process of the pipeline, until :meth:`resume_one`."""
        process = self._paused[role] = self._one(role)
        process.pause()

    def resume_one(self, role: str) -> None:
        """SIGCONT to the process that was paused; nothing happens when it is gone."""
        process = self._paused.pop(role, None)
        if process is not None:
            process.resume()

    def kill_sink_at(self, step: str) -> None:
        """The pipeline's driver kills itself when its sink reaches that step; returns when it has."""
        system, control = self._system, self._system.control("pipeline")
        control.kill_at(step)
        if not system.wait(lambda: not control.deadly_step(), _STEP_SECONDS):
            control.spare()
            raise NothingToDisturbError(f"sink at step {step}", _STEP_SECONDS)

    def kill_consumers(self, number: int) -> None:
        """SIGKILL to the members with this number."""
        for name in self._consumers.numbered(number):
            self.kill(name)

    def pause_consumers(self, number: int) -> None:
        """SIGSTOP to the members with this number, until :meth:`resume_consumers`."""
        for name in self._consumers.numbered(number):
            self.pause(name)

    def resume_consumers(self, number: int) -> None:
        """SIGCONT after :meth:`pause_consumers`."""
        for name in self._consumers.numbered(number):
            self.resume(name)

    def kill_consumer_at(self, step: str) -> None:
        """A member that is to be exactly once kills itself at that step; returns when one has."""
        system, consumers = self._system, self._consumers
        controls = [consumers.control(name) for name in consumers.exactly_once]
        for control in controls:
            control.kill_at(step)
        has_died = system.wait(lambda: not all(each.deadly_step() for each in controls), _STEP_SECONDS)
        for control in controls:
            control.spare()
        if not has_died:
            raise NothingToDisturbError(f"consumer at step {step}", _STEP_SECONDS)

    def flush_redis(self) -> None:
        """FLUSHALL."""
        try:
            with redis.Redis(port=self._system.stack.redis.port, socket_timeout=5) as client:
                client.flushall()
        except redis.RedisError as error:
            raise NothingToDisturbError(f"Redis that answers ({error})", 0) from error

    def fill_disk(self) -> None:
        """No byte more for the pipeline's checkpoint, index and Spark's local files."""
        self._system.disk.fill()

    def free_disk(self) -> None:
        """Room again."""
        self._system.disk.free()

    def fill_lake(self) -> None:
        """No byte more for the tables of the lake."""
        self._lake_disk().fill()

    def free_lake(self) -> None:
        """Room again."""
        self._lake_disk().free()

    def move_clocks(self, offset: timedelta) -> None:
        """Wall clocks of sidecars and pipeline differ so much from the machine's from now on."""
        for name in _PROGRAMS:
            self._system.control(name).move_clock(offset)

    def pause_network(self, route: str) -> None:
        """Nothing passes on a route."""
        for proxy in self._proxies(route):
            proxy.pause()

    def resume_network(self, route: str) -> None:
        """Lets what was held back pass."""
        for proxy in self._proxies(route):
            proxy.resume()

    def delay_network(self, route: str, duration: timedelta) -> None:
        """Everything on a route passes so much later in each direction; zero: at once."""
        for proxy in self._proxies(route):
            proxy.delay(duration)

    def cut_network(self, route: str) -> None:
        """All connections of a route are reset."""
        for proxy in self._proxies(route):
            proxy.cut()

    def heal(self) -> None:
        """Ends everything that lasts."""
        for role in list(self._paused):
            self.resume_one(role)
        for supervised in self._system.parts.values():
            supervised.is_kept_down = False
            supervised.do(lambda it: it.resume())
        for route in ("connect", "sidecar", "pipeline", "consumers", "redis"):
            self.resume_network(route)
            self.delay_network(route, timedelta())
        self.free_disk()
        if self._system.output.disk is not None:
            self.free_lake()
        self.move_clocks(timedelta())
        self._system.control("pipeline").spare()

    @property
    def _consumers(self) -> Consumers:
        consumers = self._system.consumers
        if consumers is None:
            raise NothingToDisturbError("a consumer", 0)
        return consumers

    def _lake_disk(self) -> Disk:
        disk = self._system.output.disk
        if disk is None:
            raise NothingToDisturbError("a disk of the output", 0)
        return disk

    def _proxies(self, route: str) -> Iterable[TcpProxy]:
        stack = self._system.stack
        if route == "redis":
            return [self._system.redis_proxy]
        if route == "partition":
            return [stack.second_kafka.proxy("connect")]
        return [stack.kafka.proxy(route), stack.second_kafka.proxy(route)]

    def _one(self, role: str) -> ManagedProcess:
        """A process of the pipeline, as soon as there is one."""
        pipeline = self._system.program("pipeline")
        find: Callable[[], list[ManagedProcess]] = functools.partial(pipeline.children, _ROLES[role])
        if not self._system.wait(lambda: bool(find()), _ROLE_SECONDS):
            raise NothingToDisturbError(role, _ROLE_SECONDS)
        with contextlib.suppress(IndexError):
            return find()[0]
        raise NothingToDisturbError(role, _ROLE_SECONDS)


def _is_worker(process: psutil.Process) -> bool:
    """Says whether it is a forked Python worker, not the daemon that forks."""
    try:
        parent = process.parent()
        return parent is not None and _is_pyspark(process) and _is_pyspark(parent)
    except psutil.Error:
        return False


def _is_daemon(process: psutil.Process) -> bool:
    """Says whether it is the process that Python workers are forked from."""
    try:
        parent = process.parent()
        return parent is not None and _is_pyspark(process) and not _is_pyspark(parent)
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


_ROLES = {"worker": _is_worker, "daemon": _is_daemon, "executor": _is_executor}
