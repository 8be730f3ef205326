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
from typing import cast

import msgspec

from slackwater.cdc import Frontier
from slackwater.cdc.envelope import Row, decode_transaction
from slackwater.cdc.partition import ParsedRows, parse_rows
from slackwater.protocol import KafkaSettings, Servers
from slackwater_sidecar import SidecarSettings
from slackwater_sidecar.consumption import Pairs, PartitionId
from slackwater_sidecar.reader import SourceReader

IDLE_POLLS = 100


class Stages(SourceReader):
    """Where the time goes."""

    def __init__(self, source: str, bootstrap: str) -> None:
        settings = SidecarSettings(source=source, servers=Servers(KafkaSettings(bootstrap)))
        self.seconds: dict[str, float] = defaultdict(float)
        self.records = 0
        self.frontier = Frontier(source)
        super().__init__(settings, lambda _topic, _number: None, self.frontier)
        self.discover()
        self._decode = msgspec.json.Decoder(Row).decode
        self._at = thread_time()

    def lap(self, stage: str) -> None:
        """Books the time since the last lap."""
        now = thread_time()
        self.seconds[stage] += now - self._at
        self._at = now

    def take_rows(
        self, key: PartitionId, rows: Pairs | ParsedRows, run: str, timestamp_ms: int, *, is_keyless: bool
    ) -> None:
        """See :class:`RecordSink`: there are no workers."""
        self.lap("consume")
        records = list(cast(Pairs, rows))
        self.records += len(records)
        self.lap("unpack")
        for _, value in records:
            if value is not None:
                self._decode(value)
        self.lap("decode")
        parse_rows(records)
        self.lap("parse for another process")
        super().take_rows(key, iter(records), run, timestamp_ms, is_keyless=is_keyless)
        self.lap("rows")

    def take_others(self, key: PartitionId, records: Sequence[tuple[int, bytes | None, int]]) -> None:
        """See :class:`RecordSink`."""
        self.lap("consume")
        self.records += len(records)
        for _, value, _ in records:
            if value is not None:
                decode_transaction(value)
        self.lap("decode")
        super().take_others(key, records)
        self.lap("BEGIN and END")

    def advance(self) -> None:
        """What a turn does after reading."""
        self.lap("consume")
        frontier = self.frontier
        frontier.advance()
        if frontier.end_offsets_wanted:
            frontier.end_offsets(self.end_offsets())
        frontier.cuts()
        self.lap("advance")


def main() -> None:
    """Reads until the frontier has got there."""
    bootstrap, source, last_lsn = sys.argv[1], sys.argv[2], int(sys.argv[3])
    gc.disable()
    stages, idle = Stages(source, bootstrap), 0
    while stages.frontier.lsn < last_lsn and idle < IDLE_POLLS:
        idle = 0 if stages.poll(0.05) else idle + 1
        stages.advance()
    stages.close()
    found = {name: round(1e9 * seconds / stages.records) for name, seconds in stages.seconds.items()}
    sys.stdout.write(json.dumps({"records": stages.records, "ns_per_record": found}) + "\n")


if __name__ == "__main__":
    main()
