"""What a sidecar reads from the simulated broker."""

import random
from collections.abc import Callable
from typing import cast

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from slackwater_cdc import Frontier
from slackwater_sidecar import SidecarSettings
from slackwater_sidecar.avro import AvroValues
from slackwater_sidecar.consumption import Consumption, RecordSink
from slackwater_sidecar.kafka_reader import KafkaSourceReader
from slackwater_sidecar.reader import Starts
from slackwater_simulator.broker import Broker, Key
from slackwater_simulator.kafka import SimulatedAdmin, SimulatedConsumer


class SimulatedSourceReader(KafkaSourceReader):
    """The real reader over simulated clients.

    Reads as much of each partition as chance has it, neglects one for a while, sees the ends of partitions
    late.

    Args:
        settings: Source, tables.
        broker: Where records are.
        starts: From where partitions are read.
        rng: Chance.
        is_away: Whether the broker does not answer now.
        avro: What makes JSON of values; None: they are JSON.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        broker: Broker,
        starts: Starts,
        *,
        rng: random.Random,
        is_away: Callable[[], bool],
        avro: AvroValues | None,
    ) -> None:
        admin = cast(AdminClient, SimulatedAdmin(broker, is_away))
        self._consumer = SimulatedConsumer(broker)
        self._rng = rng
        self._is_away = is_away
        self._neglected: Key | None = None
        self.is_eager = False
        """Whether a poll reads everything there is."""

        def consume(settings: SidecarSettings, partitions: int, sink: RecordSink) -> Consumption:
            return Consumption(settings, partitions, sink, consumer=cast(Consumer, self._consumer), avro=avro)

        super().__init__(settings, starts, admin=admin, consume=consume)

    @property
    def positions(self) -> dict[Key, int]:
        """What is read next of each partition."""
        return self._consumer.positions

    def poll(self, frontier: Frontier, timeout_seconds: float) -> int:
        """See the protocol; waits for nothing."""
        if not self._is_away():
            self._fetch()
        return super().poll(frontier, 0)

    def _fetch(self) -> None:
        keys, rng = list(self._consumer.positions), self._rng
        rng.shuffle(keys)
        if keys and rng.random() < 0.1:
            self._neglected = rng.choice((None, keys[0]))
        for key in keys:
            if self.is_eager:
                self._consumer.fetch(key, None, tells_end=True)
            elif key != self._neglected and rng.random() < 0.4:
                size = rng.choice((1, 3, 10, 100))
                self._consumer.fetch(key, size, tells_end=rng.random() < 0.7)
