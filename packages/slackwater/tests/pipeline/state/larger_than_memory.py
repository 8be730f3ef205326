"""Fills buckets with more than the memory given, changes all of it, loses the indexes and continues.

A process of its own, so that its memory is that of the stage. Its one argument is a JSON object: ``folder``,
``rows``, ``row_bytes``, ``buckets``. Prints a JSON object: sizes of the state, and by how much the private
memory of the process (anonymous pages: neither files mapped nor their cache) grew at most in each phase.
"""

import json
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slackwater.engine.bucket import state_fingerprint
from slackwater.engine.lmdb_index import LmdbIndex
from slackwater.engine.packer import EventPacker, packing_spec
from slackwater.engine.payloads import decode_documents
from slackwater.engine.settings import StageSettings
from slackwater.engine.state.manifest import SegmentReader, StateKeeper
from slackwater.engine.state.store import ArrowStore
from slackwater.engine.task import PipelineTask
from slackwater.sql.limits import StatementLimits
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

BATCH_ROWS = 4_000
TABLES = "CREATE TABLE s.notes (id bigint PRIMARY KEY, author bigint NOT NULL, text text NOT NULL);"
VIEW = "SELECT TRANSACTIONALLY n.id, n.author, length(n.text) AS length FROM s.notes n"
PLAN = compile_pipeline([("notes.sql", VIEW)], parse_catalog({"t.sql": TABLES}))


class Peak:
    """The largest private memory of this process since it was last asked."""

    def __init__(self) -> None:
        self._peak = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(0.01):
            self._peak = max(self._peak, private_bytes())

    def take(self) -> int:
        peak, self._peak = self._peak, 0
        return peak


def private_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise OSError(line)


class Stage:
    def __init__(self, folder: Path, rows: int, row_bytes: int, buckets: int) -> None:
        self._rows, self._row_bytes = rows, row_bytes
        self._spec = packing_spec(PLAN, buckets)
        self._folder = folder
        settings = StageSettings(buckets=buckets, limits=StatementLimits(memory_mib=64))
        self._task = PipelineTask(PLAN, settings)
        self._store = ArrowStore(str(folder / "checkpoint"))
        self._keeper = StateKeeper(self._store, state_fingerprint(PLAN, settings))
        self._blobs = SegmentReader(self._store)
        self._indexes = [LmdbIndex(folder / "index" / "0" / str(number)) for number in range(buckets)]
        self._random = random.Random(1)
        self._lsn = 0

    def change_all(self) -> int:
        """Every row gets another text, in random order; gives how many documents came out."""
        order = list(range(self._rows))
        self._random.shuffle(order)
        return sum(
            self._batch(order[start : start + BATCH_ROWS]) for start in range(0, self._rows, BATCH_ROWS)
        )

    def change_some(self) -> int:
        """One batch."""
        return self._batch(self._random.sample(range(self._rows), BATCH_ROWS))

    def _batch(self, ids: list[int]) -> int:
        self._lsn += 100
        packer = EventPacker(self._spec)
        for row_id in ids:
            text = self._random.randbytes(self._row_bytes // 2).hex()[
                : self._row_bytes - row_id % 7 - self._lsn % 5
            ]
            row = json.dumps({"id": row_id, "author": self._lsn, "text": text}).encode()
            packer.table("s.notes").add("u", self._lsn, None, row)
        rows = [(stage, bucket, 0, payload) for stage, bucket, payload in packer.payloads()]
        result = self._task.process(rows, self._keeper.state, self._blobs, self._index)
        self._keeper.adopt(self._keeper.prepare({}, result.writes))
        payloads = (payload for _, _, _, payload in result.rows)
        return sum(map(len, decode_documents(self._keeper.state.batch_id, payloads)))

    def _index(self, _: int, bucket: int) -> LmdbIndex:
        return self._indexes[bucket]

    def lose_indexes(self) -> None:
        for number, index in enumerate(self._indexes):
            index.close()
            self._indexes[number] = LmdbIndex(self._folder / "index" / "1" / str(number))
        self._blobs = SegmentReader(self._store)

    def sizes(self) -> dict[str, int]:
        heads = self._keeper.state.heads.values()
        return {
            "live_bytes": sum(head.live_bytes for head in heads),
            "log_bytes": sum(head.log_bytes for head in heads),
        }


def main(order: dict[str, Any]) -> None:
    stage = Stage(Path(order["folder"]), order["rows"], order["row_bytes"], order["buckets"])
    stage.change_some()  # imports, connections, first plans
    peak, base = Peak(), private_bytes()
    growth: dict[str, int] = {}
    documents: dict[str, int] = {}

    def phase(name: str, work: Callable[[], int]) -> None:
        peak.take()
        documents[name] = work()
        growth[name] = peak.take() - base

    phase("fill", stage.change_all)
    phase("change", stage.change_all)
    stage.lose_indexes()
    phase("rebuild", stage.change_some)
    sys.stdout.write(json.dumps({"growth": growth, "documents": documents, **stage.sizes()}) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
