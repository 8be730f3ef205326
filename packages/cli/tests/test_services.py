"""The demo's subprocesses."""

import threading
from pathlib import Path

import pytest

from slackwater.demo.errors import ServiceEndedError
from slackwater.demo.services import Service, last_words
from slackwater_devstack import Lifetime
from slackwater_protocol import SystemClock


@pytest.fixture
def failing(tmp_path: Path) -> Service:
    return Service("sidecar", ["no-such-command"], tmp_path)


def check_until_it_ends(service: Service) -> None:
    clock, pause = SystemClock(), threading.Event()
    deadline = clock.monotonic() + 900
    while clock.monotonic() < deadline:
        service.check()
        pause.wait(0.05)


def test_the_command_is_what_a_user_would_type(failing: Service) -> None:
    assert failing.command == "slackwater no-such-command"


def test_a_service_that_ended_is_reported_with_its_last_lines(failing: Service) -> None:
    failing.start(Lifetime.EMBEDDED, {})
    with pytest.raises(ServiceEndedError) as caught:
        check_until_it_ends(failing)
    assert "no-such-command" in caught.value.last_lines
    assert str(failing.log) in str(caught.value)
    failing.stop()


def test_a_service_that_never_started_is_reported_too(failing: Service) -> None:
    with pytest.raises(ServiceEndedError):
        failing.check()
    failing.stop()


def test_the_error_is_shown_rather_than_what_libraries_say_afterwards() -> None:
    lines = ["starting", "error: no", "       because", " - leaked", "noise"]
    assert last_words(lines) == ["error: no", "       because"]


def test_without_an_error_the_last_lines_are_shown() -> None:
    assert last_words([str(number) for number in range(100)])[-1] == "99"
