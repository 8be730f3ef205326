"""What is judged: something that takes batches of change events and gives changed documents."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from slackwater_differential.case import Batch, Case

Event = tuple[str, str, int, bytes | None, bytes | None, int | None]
"""Table, operation, commit LSN, old row, new row, own LSN."""


@dataclass(frozen=True, slots=True)
class ChangedDocument:
    """A document that an engine published.

    Attributes:
        view: Number of the view.
        lsn: Commit LSN.
        key: Its key as JSON.
        document: The document as JSON; None: it vanished.
    """

    view: int
    lsn: int
    key: bytes
    document: bytes | None


class RefusedViewError(Exception):
    """The engine does not take a view.

    Attributes:
        reason: Why.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Engine(Protocol):
    """Runs the views of a case. One thread."""

    def run(self, events: Sequence[Event], batch: Batch, first_lsn: int) -> Sequence[ChangedDocument]:
        """Processes whole transactions.

        Args:
            events: In commit order.
            batch: How they are to be processed.
            first_lsn: Of the batch's first commit, which may have no events.

        Returns:
            The documents that changed, in the order in which they are published.
        """

    def close(self) -> None:
        """Frees what it holds; called once, at last."""


MakeEngine = Callable[[Case], Engine]
"""Makes an engine for a case, with its views compiled and empty state.

Raises:
    RefusedViewError: It does not take the case's views.
"""
