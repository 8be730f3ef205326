"""How each fault of the table is done to the running system."""

import contextlib
import functools
from collections.abc import Callable, Iterable
from datetime import timedelta

import redis

from slackwater_devstack import TcpProxy
from slackwater_devstack.processes import ManagedProcess
from slackwater_testing.chaos.parts import is_executor, is_planner, is_worker
from slackwater_testing.chaos.system import System
from slackwater_testing.errors import NothingToDisturbError

STEP_SECONDS = 300.0
"""How long a sink may take to reach a step: Spark may just be starting."""
ROLE_SECONDS = 300.0
_PROGRAMS = ("sidecar-1", "sidecar-2", "pipeline")
_KINDS = {"worker": is_worker, "planner": is_planner, "executor": is_executor}


class SystemDisturber:
    """See `Disturber`: on a running system; thread-safe."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._paused: dict[str, ManagedProcess] = {}

    def kill(self, part: str) -> None:
        """See the protocol."""
        self._system.parts[part].do(lambda it: it.kill())

    def pause(self, part: str) -> None:
        """See the protocol."""
        self._system.parts[part].do(lambda it: it.pause())

    def resume(self, part: str) -> None:
        """See the protocol."""
        self._system.parts[part].do(lambda it: it.resume())

    def kill_one(self, role: str) -> None:
        """See the protocol."""
        self._one(role).kill()

    def pause_one(self, role: str) -> None:
        """See the protocol."""
        process = self._paused[role] = self._one(role)
        process.pause()

    def resume_one(self, role: str) -> None:
        """See the protocol."""
        process = self._paused.pop(role, None)
        if process is not None:
            process.resume()

    def kill_sink_at(self, step: str) -> None:
        """See the protocol."""
        system, control = self._system, self._system.control("pipeline")
        control.kill_sink_at(step)
        if not system.wait(lambda: not control.deadly_step(), STEP_SECONDS):
            control.spare_sink()
            raise NothingToDisturbError(f"sink at step {step}", STEP_SECONDS)

    def flush_redis(self) -> None:
        """See the protocol."""
        try:
            with redis.Redis(port=self._system.stack.redis.port, socket_timeout=5) as client:
                client.flushall()
        except redis.RedisError as error:
            raise NothingToDisturbError(f"Redis that answers ({error})", 0) from error

    def fill_disk(self) -> None:
        """See the protocol."""
        self._system.disk.fill()

    def free_disk(self) -> None:
        """See the protocol."""
        self._system.disk.free()

    def move_clocks(self, offset: timedelta) -> None:
        """See the protocol."""
        for name in _PROGRAMS:
            self._system.control(name).move_clock(offset)

    def pause_network(self, route: str) -> None:
        """See the protocol."""
        for proxy in self._proxies(route):
            proxy.pause()

    def resume_network(self, route: str) -> None:
        """See the protocol."""
        for proxy in self._proxies(route):
            proxy.resume()

    def delay_network(self, route: str, duration: timedelta) -> None:
        """See the protocol."""
        for proxy in self._proxies(route):
            proxy.delay(duration)

    def cut_network(self, route: str) -> None:
        """See the protocol."""
        for proxy in self._proxies(route):
            proxy.cut()

    def heal(self) -> None:
        """See the protocol."""
        for role in list(self._paused):
            self.resume_one(role)
        for supervised in self._system.parts.values():
            supervised.do(lambda it: it.resume())
        for route in ("connect", "sidecar", "pipeline", "redis"):
            self.resume_network(route)
            self.delay_network(route, timedelta())
        self.free_disk()
        self.move_clocks(timedelta())
        self._system.control("pipeline").spare_sink()

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
        find: Callable[[], list[ManagedProcess]] = functools.partial(pipeline.children, _KINDS[role])
        if not self._system.wait(lambda: bool(find()), ROLE_SECONDS):
            raise NothingToDisturbError(role, ROLE_SECONDS)
        with contextlib.suppress(IndexError):
            return find()[0]
        raise NothingToDisturbError(role, ROLE_SECONDS)
