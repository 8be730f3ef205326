"""How long the sidecar takes from END in Kafka to the cut in Redis."""

import json
import subprocess
from collections.abc import Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from slackwater_bench.backlog.steady_orders import SteadyOrders
from slackwater_bench.backlog.traffic import OpenLoop, TransactionAppender
from slackwater_bench.errors import RunFailedError
from slackwater_bench.percentiles import summary
from slackwater_bench.runs.bed import SOURCE, Bed
from slackwater_bench.runs.processes import cpu_between, cpu_use
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_cdc.envelope import End, decode_transaction
from slackwater_protocol.keys import transaction_topic

ORDERS = 2_000
WARM_UP_SECONDS = 5.0
END_SECONDS = 60.0
ANSWER_SECONDS = 10.0


def run(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    rate, seconds = int(parameters["records_per_second"]), float(parameters["seconds"])
    orders, clock = SteadyOrders(ORDERS), context.clock
    with Bed(context, kafka_heap="512m") as bed:
        appender = TransactionAppender(bed.bootstrap, SOURCE, int(parameters["partitions"]), append_time=True)
        appender.append_all(map(orders.changes_of, range(ORDERS)), clock)
        bed.start_sidecar()
        watch = subprocess.Popen(
            context.subject.probe("cut_watch", bed.stack.redis.url, SOURCE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        loop = OpenLoop(
            appender,
            orders.transactions(orders.rows_per_order, ORDERS),
            rate / (orders.rows_per_order + 2),
            clock,
        )
        context.say(f"{rate:,} records/s for {seconds:g} s")
        loop.start()
        bed.rest(WARM_UP_SECONDS, clock)
        used, since_ms = cpu_use(bed.roles()), 1000 * clock.now().timestamp()
        bed.rest(seconds, clock)
        cpu = cpu_between(used, cpu_use(bed.roles()))
        loop.stop()
        seen = _seen(watch, loop.intended[-1][0])
        appended = [(lsn, at) for lsn, at in _append_times(bed.bootstrap) if at >= since_ms]
    found = summary(delays(appended, seen))
    return Measured(
        found["p99"],
        {
            "delay_ms": found,
            "cuts": sum(at >= since_ms for _, at in seen),
            "generator_late_ms": round(1000 * loop.latest_seconds, 1),
            "cpu_seconds": cpu,
        },
    )


def _seen(watch: "subprocess.Popen[str]", last_lsn: int) -> list[tuple[int, float]]:
    try:
        output, _ = watch.communicate(f"{last_lsn}\n", timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        watch.kill()
        raise RunFailedError("the sidecar", f"no cut at {last_lsn} within {END_SECONDS:g} s") from None
    return [(lsn, at) for lsn, at in json.loads(output)]


def _append_times(bootstrap: str) -> list[tuple[int, int]]:
    """Commit LSN of every END and when the broker appended it (ms since the epoch)."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.partition.eof": True})
    consumer.assign([TopicPartition(transaction_topic(SOURCE), 0, OFFSET_BEGINNING)])
    found: list[tuple[int, int]] = []
    try:
        while messages := consumer.consume(10_000, ANSWER_SECONDS):
            for message in messages:
                error, value = message.error(), message.value()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                    return found
                record = None if value is None else decode_transaction(value)
                if isinstance(record, End):
                    found.append((record.commit_lsn, message.timestamp()[1]))
    finally:
        consumer.close()
    raise RunFailedError("Kafka", "the transaction topic could not be read to its end")


def delays(appended: Sequence[tuple[int, int]], seen: Sequence[tuple[int, float]]) -> list[float]:
    """For every END the time until the first cut at or above it was seen; both ascending."""
    result, index = [], 0
    for lsn, at in appended:
        while seen[index][0] < lsn:
            index += 1
        result.append(seen[index][1] - at)
    return result


SIDECAR_DELAY = Scenario(
    name="sidecar-delay",
    version=1,
    unit="ms, p99",
    direction=Direction.LOWER,
    measures="Time from the moment at which the broker appended an END until a blocking reader of Redis has"
    " the cut that contains it, at a steady rate of records (change events, BEGIN and END; transactions of"
    " four rows). Kafka's clock has milliseconds.",
    why="What the sidecar adds to every pipeline's latency.",
    points=(
        {"records_per_second": 2_000, "partitions": 4, "seconds": 20},
        {"records_per_second": 20_000, "partitions": 4, "seconds": 20},
        {"records_per_second": 20_000, "partitions": 500, "seconds": 20},
    ),
    quick_points=({"records_per_second": 20_000, "partitions": 4, "seconds": 8},),
    run=run,
    columns=(
        "delay_ms.p50",
        "delay_ms.p90",
        "delay_ms.p99",
        "delay_ms.max",
        "cuts",
        "cpu_seconds.sidecar",
        "cpu_seconds.others",
    ),
    threshold=0.25,
)
