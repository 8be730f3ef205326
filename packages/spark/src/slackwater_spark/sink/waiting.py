"""How a sink waits for its server: it says so, and waits no longer when the run is to stop."""

import threading
from collections.abc import Callable

from slackwater_spark.errors import PipelineUnavailableError


class Waiting:
    """Pauses between attempts; used by the thread that runs the pipeline.

    Args:
        stop: When it is set nothing is waited for any more; None: it never is.
        on_step: Told what is waited for.
    """

    def __init__(
        self, stop: threading.Event | None = None, on_step: Callable[[str], None] = lambda _: None
    ) -> None:
        self._stop = stop or threading.Event()
        self._on_step = on_step

    @property
    def is_over(self) -> bool:
        """True when the run is to stop."""
        return self._stop.is_set()

    def pause(self, seconds: float, step: str) -> None:
        """Says what is waited for, and waits so long at most.

        Raises:
            PipelineUnavailableError: The run is to stop.
        """
        self._on_step(step)
        if self._stop.wait(seconds):
            raise PipelineUnavailableError(
                f"the run was asked to stop while it was {step}",
                "nothing is lost or half visible: start the pipeline again when the server is back",
            )
