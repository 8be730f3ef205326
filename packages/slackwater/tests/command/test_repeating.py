"""What is repeated in a thread: when it begins, and that it ends."""

import threading

from slackwater.observe.repeating import Repeating

LATER = 3600.0


def test_a_prompt_one_is_called_at_once_and_another_one_later() -> None:
    called, never = threading.Event(), threading.Event()
    prompt = Repeating("prompt", called.set, LATER, is_prompt=True)
    patient = Repeating("patient", never.set, LATER)
    patient.begin()
    prompt.begin()
    assert called.wait(60)
    prompt.close()
    patient.close()
    assert not never.is_set()


def test_it_is_called_again_until_it_is_closed() -> None:
    left = threading.Semaphore(0)
    repeating = Repeating("repeating", left.release, 0.0)
    repeating.begin()
    assert all(left.acquire(timeout=60) for _ in range(3))
    repeating.close()
    repeating.close()
    assert "repeating" not in {thread.name for thread in threading.enumerate()}


def test_one_that_did_not_begin_can_be_closed() -> None:
    Repeating("idle", lambda: None, LATER).close()
