"""Lets work that has begun finish, although the task that waits for it is cancelled."""

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def finished(answer: "asyncio.Future[T]") -> T:
    """Waits for an answer; a caller that is cancelled meanwhile gets that only when the answer is there."""
    cancelled: asyncio.CancelledError | None = None
    while not answer.done():
        try:
            await asyncio.wait([answer])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        answer.exception()  # or asyncio complains that nobody has looked at it
        raise cancelled
    return answer.result()
