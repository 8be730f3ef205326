"""The command of the demo."""

import signal

import pytest

from slackwater_lab.demo.command import terminate_as_interrupt


def test_sigterm_unwinds_like_an_interruption_because_the_demo_has_to_tidy_up() -> None:
    with pytest.raises(KeyboardInterrupt), terminate_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
