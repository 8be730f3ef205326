"""Publishes cuts with many partitions and reads them back; prints one JSON line.

Arguments: bootstrap, Redis URL, source, partitions, cuts, transactions per cut. The writer is the sidecar's
publisher with real cut log and Redis, the reader what a pipeline's driver uses.
"""

import json
import sys
from collections.abc import Iterator
from time import monotonic, process_time

from slackwater.cuts import CutLog, FrontierState, FrontierStatus, RedisMarkerStore
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.planner import Planner
from slackwater.protocol import CommittedTransaction, Cut, KafkaSettings, encode_cut
from slackwater_sidecar.publisher import Publisher

TOPIC_PARTITIONS = 100
STATUS = FrontierStatus(state=FrontierState.RUNNING, detail="", wall_ms=1, sidecar="probe")


def cuts(source: str, partitions: int, count: int, transactions: int) -> Iterator[Cut]:
    """Cuts in which every transaction advances every partition a little: the worst case."""
    sizes = [min(TOPIC_PARTITIONS, partitions - first) for first in range(0, partitions, TOPIC_PARTITIONS)]
    lsn = 0
    for number in range(1, count + 1):
        previous = lsn
        table = []
        for each in range(transactions):
            lsn += 640
            table.append(CommittedTransaction(number * transactions + each, lsn, 1_795_206_861_409 + number))
        yield Cut(
            source=source,
            timeline=1,
            lsn=lsn,
            previous_lsn=previous,
            commit_ts_ms=1_795_206_861_409 + number,
            event_count=4 * transactions * number,
            transactions=tuple(table),
            end_offsets={
                f"{source}.inventory.t{topic}": (1_000_000 + number * transactions,) * size
                for topic, size in enumerate(sizes)
            },
            transaction_offset=2 * transactions * number,
        )


def main() -> None:
    """Writes one by one, as a sidecar with live traffic does; then reads one by one."""
    bootstrap, redis_url, source = sys.argv[1:4]
    partitions, count, transactions = map(int, sys.argv[4:7])
    log = CutLog(source, KafkaSettings(bootstrap))
    log.ensure_topic()
    publisher = Publisher(source, log, RedisMarkerStore.connect(redis_url), 2_000)
    every = list(cuts(source, partitions, count, transactions))
    publisher.publish(every[:1], STATUS)
    publisher.report(STATUS, [])
    started, used = monotonic(), process_time()
    for cut in every[1:]:
        publisher.publish([cut], STATUS)
        publisher.show_markers()
    written, write_cpu = monotonic() - started, process_time() - used
    tables = ",".join(topic.removeprefix(f"{source}.") for topic in every[0].end_offsets)
    options = SourceOptions.parse(
        {"source": source, "bootstrap": bootstrap, "redis_url": redis_url, "tables": tables}
    )
    planner = Planner(options)
    position = planner.next(planner.start(), 1, None)
    started, used, read = monotonic(), process_time(), 0
    while (end := planner.next(position, 1, None)) != position:
        planner.tasks(position, end)
        position, read = end, read + 1
    found = {
        "bytes_per_cut": len(encode_cut(every[-1])),
        "bytes_per_offset": len(json.dumps(position.to_json())),
        "write_ms": 1000 * written / (count - 1),
        "write_cpu_ms": 1000 * write_cpu / (count - 1),
        "plan_ms": 1000 * (monotonic() - started) / read,
        "plan_cpu_ms": 1000 * (process_time() - used) / read,
        "read": read,
    }
    publisher.close()
    planner.close()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
