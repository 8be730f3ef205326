"""What a fault can do to the running system."""

from datetime import timedelta
from typing import Protocol


class World(Protocol):
    """The system under test as the table of faults sees it. All methods block until done.

    Parts: ``broker``, ``connect``, ``postgres``, ``redis``, ``sidecar-1``, ``sidecar-2``, ``pipeline``.
    Whatever dies is started again by a supervisor, as systemd or Kubernetes would. Routes: ``connect``,
    ``sidecar`` and ``pipeline`` to Kafka, ``redis`` to Redis, ``partition``: Connect to the second broker.
    """

    def kill(self, part: str) -> None:
        """SIGKILL to a part and all its processes."""
        ...

    def pause(self, part: str) -> None:
        """SIGSTOP to a part and all its processes."""
        ...

    def resume(self, part: str) -> None:
        """SIGCONT after :meth:`pause`."""
        ...

    def kill_one(self, role: str) -> None:
        """SIGKILL to one process of the pipeline: ``worker``, ``planner`` (Python), ``executor`` (JVM)."""
        ...

    def pause_one(self, role: str) -> None:
        """SIGSTOP to one process of the pipeline, until :meth:`resume_one`."""
        ...

    def resume_one(self, role: str) -> None:
        """SIGCONT to the process that was paused; nothing happens when it is gone."""
        ...

    def kill_sink_at(self, step: str) -> None:
        """The pipeline's driver kills itself when its sink reaches that step; returns when it has."""
        ...

    def flush_redis(self) -> None:
        """FLUSHALL."""
        ...

    def fill_disk(self) -> None:
        """No byte more for the pipeline's checkpoint, index and Spark's local files."""
        ...

    def free_disk(self) -> None:
        """Room again."""
        ...

    def move_clocks(self, offset: timedelta) -> None:
        """Wall clocks of sidecars and pipeline differ so much from the machine's from now on."""
        ...

    def pause_network(self, route: str) -> None:
        """Nothing passes on a route."""
        ...

    def resume_network(self, route: str) -> None:
        """What was held back passes."""
        ...

    def delay_network(self, route: str, duration: timedelta) -> None:
        """Everything on a route passes so much later in each direction; zero: at once."""
        ...

    def cut_network(self, route: str) -> None:
        """All connections of a route are reset."""
        ...
