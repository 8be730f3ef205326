"""Takes a full source through the sidecar's stages, timing each; prints one JSON line.

Arguments: bootstrap, source, commit LSN at which to end. The stages are the sidecar's own, called one after
the other for each chunk of records; decoding by itself comes on top and is not part of the sum.
"""

import gc
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from time import thread_time

import msgspec

from slackwater.cdc import Frontier, Partition
from slackwater.cdc.envelope import Row, decode_transaction
from slackwater.cdc.partition import ParsedRows, parse_rows
from slackwater.protocol import KafkaSettings, Servers
from slackwater_sidecar import SidecarSettings
from slackwater_sidecar.consumption import Consumption, Failure, Pairs, PartitionId
from slackwater_sidecar.reader import Lookup

IDLE_POLLS = 100


class Stages:
    """Where the time goes; a sink of records."""

    def __init__(self, source: str, bootstrap: str) -> None:
        settings = SidecarSettings(source=source, servers=Servers(KafkaSettings(bootstrap)))
        self.seconds: dict[str, float] = defaultdict(float)
        self.records = 0
        self.frontier = Frontier(source)
        self.lookup = Lookup(settings, lambda _topic, _number: None)
        starts = self.lookup.find(()).starts
        self.partitions: dict[tuple[str, int], Partition] = {
            key: self.frontier.add_partition(*key, start)
            for key, start in starts.items()
            if self.lookup.is_data_topic(key[0])
        }
        self.keys = set(starts)
        others = frozenset({self.lookup.transactions[0], self.lookup.notifications[0]})
        self.consumption = Consumption(settings, others, len(starts))
        self.consumption.assign(starts)
        self._decode = msgspec.json.Decoder(Row).decode
        self._at = thread_time()

    def lap(self, stage: str) -> None:
        """Books the time since the last lap."""
        now = thread_time()
        self.seconds[stage] += now - self._at
        self._at = now

    def take_rows(
        self, key: PartitionId, rows: Pairs, run: str, timestamp_ms: int, *, is_keyless: bool
    ) -> None:
        """See :class:`RecordSink`."""
        self.lap("consume")
        records = list(rows)
        self.records += len(records)
        self.lap("unpack")
        for _, value in records:
            if value is not None:
                self._decode(value)
        self.lap("decode")
        parse_rows(records)
        self.lap("parse for another process")
        self.partitions[key].read(records, run, timestamp_ms=timestamp_ms, is_keyless=is_keyless)
        self.lap("rows")

    def take_parsed_rows(
        self, key: PartitionId, rows: ParsedRows, run: str, timestamp_ms: int, *, is_keyless: bool
    ) -> None:
        """See :class:`RecordSink`: there are no workers."""
        raise TypeError(rows)

    def take_others(self, key: PartitionId, records: Sequence[tuple[int, bytes | None, int]]) -> None:
        """See :class:`RecordSink`."""
        self.lap("consume")
        self.records += len(records)
        for _, value, _ in records:
            if value is not None:
                decode_transaction(value)
        self.lap("decode")
        self.frontier.read_transactions(records)
        self.lap("BEGIN and END")

    def take_end(self, key: PartitionId, offset: int) -> None:
        """See :class:`RecordSink`."""
        if key in self.partitions:
            self.partitions[key].skip_to(offset)
        else:
            self.frontier.skip_transactions_to(offset)

    def take_failure(self, failure: Failure) -> None:
        """See :class:`RecordSink`."""
        raise RuntimeError(failure.reason)

    def advance(self) -> None:
        """What a turn does after reading."""
        self.lap("consume")
        frontier = self.frontier
        frontier.advance()
        if frontier.end_offsets_wanted:
            frontier.end_offsets(self.lookup.end_offsets(self.keys))
        frontier.cuts()
        self.lap("advance")


def main() -> None:
    """Reads until the frontier has got there."""
    bootstrap, source, last_lsn = sys.argv[1], sys.argv[2], int(sys.argv[3])
    gc.disable()
    stages, idle = Stages(source, bootstrap), 0
    while stages.frontier.lsn < last_lsn and idle < IDLE_POLLS:
        idle = 0 if stages.consumption.read(stages, 0.05) else idle + 1
        stages.advance()
    stages.consumption.close()
    found = {name: round(1e9 * seconds / stages.records) for name, seconds in stages.seconds.items()}
    sys.stdout.write(json.dumps({"records": stages.records, "ns_per_record": found}) + "\n")


if __name__ == "__main__":
    main()
