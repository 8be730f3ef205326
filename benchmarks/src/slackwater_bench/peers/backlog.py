"""The topics are full, then the peer starts: throughput, and what it shows on the way."""

import threading
from dataclasses import dataclass, replace

from slackwater_bench.generator import TopicFiller
from slackwater_bench.peers.errors import PeerFailedError
from slackwater_bench.peers.installation import Installed
from slackwater_bench.peers.judging import judge, output_of, specification_of
from slackwater_bench.peers.outcome import PeerRun, Setting
from slackwater_bench.peers.output import OutputTopic
from slackwater_bench.peers.registry import Peer
from slackwater_bench.peers.running import Patience, started, total_mib
from slackwater_bench.peers.workload import PeersWorkload
from slackwater_bench.runs.bed import SOURCE, Bed
from slackwater_bench.runs.processes import MemoryWatch
from slackwater_bench.scenario import RunContext

SEED = 7
PARTITIONS = 4
START_SECONDS = 120.0
QUIET_SECONDS = 5.0
DEADLINE_SECONDS = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogOptions:
    """Sizes of a run."""

    orders: int = 20_000
    events: int = 1_000_000
    """After the orders and their lines."""


def run_backlog(
    peer: Peer, installed: Installed | None, options: BacklogOptions, context: RunContext
) -> PeerRun:
    """One run on servers of its own; every run with the same options has the same events in the topics.

    Raises:
        PeerFailedError: the peer ends, or does not come to rest in time.
    """
    clock = context.clock
    with Bed(context, partitions=PARTITIONS, kafka_heap="512m") as bed:
        workload = PeersWorkload(SEED, options.orders)
        with TopicFiller(bed.bootstrap, workload, prefix=SOURCE, partitions=PARTITIONS) as filler:
            filler.fill(options.events)
        output = OutputTopic(bed.bootstrap, output_of(peer))
        context.say(f"{peer.title}: backlog")
        begun = clock.now().timestamp()
        with (
            started(peer, installed, bed, output.name) as running,
            MemoryWatch(dict(running.roles)) as memory,
        ):
            patience = Patience(peer, running, output.end, clock, threading.Event().wait)
            reading = patience.until_reading(START_SECONDS)
            patience.until_quiet(
                records=options.orders // 2, quiet_seconds=QUIET_SECONDS, seconds=DEADLINE_SECONDS
            )
        appended = output.appended()
        output.close()
        if appended is None:
            raise PeerFailedError(peer.name, "wrote no document")
        specification = specification_of(peer, bed.folder / "judge")
        verdict, events = judge(specification, bed.bootstrap, context.say)
        return PeerRun(
            peer=peer.name,
            setting=Setting.BACKLOG,
            events=events,
            startup_seconds=round(reading - begun, 2),
            seconds=round(appended.last_ms / 1000 - reading, 2),
            memory_mib=total_mib(memory.peaks),
            # the generator's commit times are not those of this clock
            verdict=replace(verdict, delay_p50_ms=None, delay_p99_ms=None),
        )
