"""Configuration files say to the brokers of tests what we mean."""

from pathlib import Path

import pytest

from slackwater.dev.java import Properties
from slackwater.protocol import ConfigError
from slackwater_lab.servers.stack import (
    LabBroker,
    LabStackSettings,
    Listener,
    SecondBroker,
    listener_properties,
)

PLAIN = Listener(name="PLAINTEXT", port=1, advertised_port=1)


class Second(SecondBroker):
    def written(self) -> Properties:
        return self._properties()


def test_a_listener_behind_a_proxy_tells_its_clients_to_use_the_proxy() -> None:
    routed = [PLAIN, Listener(name="SIDECAR", port=3, advertised_port=4)]
    broker = listener_properties(routed, "CONTROLLER://127.0.0.1:2")
    assert "SIDECAR://127.0.0.1:3" in broker["listeners"].split(",")
    assert broker["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1,SIDECAR://127.0.0.1:4"
    assert broker["inter.broker.listener.name"] == "PLAINTEXT"
    protocols = broker["listener.security.protocol.map"]
    assert protocols == "PLAINTEXT:PLAINTEXT,SIDECAR:PLAINTEXT,CONTROLLER:PLAINTEXT"


def test_a_second_broker_is_no_controller_and_finds_the_first_one(tmp_path: Path) -> None:
    first = LabBroker(tmp_path)
    broker = Second(first).written()
    assert (broker["process.roles"], broker["node.id"]) == ("broker", "2")
    assert broker["controller.quorum.voters"] == f"1@127.0.0.1:{first.controller_port}"
    assert "CONTROLLER" not in broker["listeners"]


def test_a_route_that_no_listener_can_be_called_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^setting kafka_routes is "):
        LabStackSettings(folder=Path("/nowhere"), kafka_routes=("Side car",))
