"""Sharing: what two pipelines with equal stages keep and cost, apart and as one."""

import json
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from slackwater_bench.bed import SOURCE, Bed, output_of
from slackwater_bench.scenario import Measured, Parameters, RunContext
from slackwater_bench.scenarios.wide import BATCH_SECONDS, PIPELINES, START_SECONDS, WARM_UP_BATCHES, Shop
from slackwater_bench.traffic import TransactionAppender
from slackwater_bench.usage import cpu_between, cpu_use
from slackwater_lab.watching import CommitWatcher

PARTS = ("order_pieces", "order_statuses")
"""Folders of the pipelines."""
ORDERS = 20_000


def run_sharing(parameters: Parameters, context: RunContext) -> Measured:
    """One run: both pipelines beside each other, then the one that `slackwater share` makes of them."""
    rows, batches = int(parameters["rows"]), int(parameters["batches"])
    shop, parts = Shop(int(parameters.get("orders", ORDERS))), [PIPELINES / name for name in PARTS]
    with Bed(context, kafka_heap="256m") as bed:
        work = _Work(bed, context, shop, rows, batches)
        for part in parts:
            work.start(part)
        apart = work.measure(parts)
        joint = bed.folder / "together"
        work.command("share", *map(str, parts), "--into", str(joint), "--bootstrap", bed.bootstrap, "--yes")
        work.start(joint, *(word for part in parts for word in ("--copy-state-of", str(part))))
        work.wait_for([joint])
        for part in parts:
            bed.stop(part.name)
        together = work.measure([joint])
    return sharing_measured(apart, together)


class _Work:
    """Transactions that change the shop, and pipelines that follow; what they keep and cost."""

    def __init__(self, bed: Bed, context: RunContext, shop: Shop, rows: int, batches: int) -> None:
        self._bed, self._context, self._shop, self._rows, self._batches = bed, context, shop, rows, batches
        self._appender = TransactionAppender(bed.bootstrap, SOURCE, 4, tables=tuple(shop.counts))
        self._appender.append_all(shop.inserts(), context.clock)
        bed.start_sidecar()

    def command(self, *words: str) -> str:
        done = subprocess.run(
            self._context.environment.command(*words), check=True, capture_output=True, text=True
        )
        return done.stdout

    def start(self, pipeline: Path, *options: str) -> None:
        self._bed.start_pipeline(
            pipeline, "--checkpoint", str(self._checkpoint(pipeline)), *options, name=pipeline.name
        )

    def wait_for(self, pipelines: Sequence[Path]) -> None:
        self._batch(pipelines, START_SECONDS)

    def measure(self, pipelines: Sequence[Path]) -> dict[str, float]:
        """Returns the bytes that the pipelines keep, and the CPU seconds of some batches."""
        names = [each.name for each in pipelines]
        self.wait_for(pipelines)
        for _ in range(WARM_UP_BATCHES):
            self._batch(pipelines, BATCH_SECONDS)
        self._context.say(f"{' and '.join(names)}: {self._batches} batches of {self._rows:,} changed rows")
        used = cpu_use(self._bed.roles())
        for _ in range(self._batches):
            self._batch(pipelines, BATCH_SECONDS)
        spent = cpu_between(used, cpu_use(self._bed.roles()))
        cpu = sum(seconds for role, seconds in spent.items() if role.split()[0] in names)
        return {"cpu_seconds": round(cpu, 1), "state_bytes": sum(map(self._state_bytes, pipelines))}

    def _batch(self, pipelines: Sequence[Path], seconds: float) -> None:
        with ExitStack() as watching:
            watchers = [
                watching.enter_context(
                    closing(
                        CommitWatcher(
                            self._bed.bootstrap, output_of(each), self._context.clock, self._bed.check
                        )
                    )
                )
                for each in pipelines
            ]
            last = self._appender.append_all([self._shop.change(self._rows)], self._context.clock)
            for each in watchers:
                each.until(last, seconds)

    def _state_bytes(self, pipeline: Path) -> int:
        told = self.command("state", str(pipeline), "--checkpoint", str(self._checkpoint(pipeline)), "--json")
        return sum(int(stage["live_bytes"]) for stage in json.loads(told)["stages"])

    def _checkpoint(self, pipeline: Path) -> Path:
        return self._bed.folder / "checkpoints" / pipeline.name


def sharing_measured(apart: dict[str, float], together: dict[str, float]) -> Measured:
    """The processor time of the one pipeline, and what it saves."""
    saved = {f"saved_{name}": round(1 - together[name] / each, 2) for name, each in apart.items()}
    return Measured(together["cpu_seconds"], {"apart": apart, "together": together, **saved})
