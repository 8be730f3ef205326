"""A reader of a source that has no topics yet. If it returns at once, its loop takes a whole core."""

import pytest

from slackwater.cdc import Frontier
from slackwater.protocol import KafkaSettings, Servers
from slackwater_sidecar import SidecarSettings
from slackwater_sidecar.reader import SourceReader


def test_without_topics_reading_waits_as_long_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("slackwater_sidecar.reader.time.sleep", slept.append)
    settings = SidecarSettings(source="inv", servers=Servers(KafkaSettings("127.0.0.1:1")))
    reader = SourceReader(settings, lambda _topic, _number: None, Frontier("inv"))
    try:
        assert [reader.poll(0.5), reader.poll(0.25)] == [0, 0]
    finally:
        reader.close()
    assert slept == [0.5, 0.25]
