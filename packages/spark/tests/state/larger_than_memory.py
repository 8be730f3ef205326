"""Fills buckets with more than the memory given, changes all of it, loses the indexes and goes on.

A process of its own, so that its memory is that of the stage. Its one argument is a JSON object: ``folder``,
``rows``, ``row_bytes``, ``buckets``. Prints a JSON object: sizes of the state, and by how much the private
memory of the process (anonymous pages: neither files mapped nor their cache) grew at most in each phase.
"""

import json
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slackwater_engine.bucket import BucketProcessor
from slackwater_engine.evaluate.evaluators import SqlEvaluators
from slackwater_engine.index.lmdb_index import LmdbIndex
from slackwater_engine.local import MemoryCell
from slackwater_engine.pack.packer import EventPacker
from slackwater_engine.pack.specification import packing_spec
from slackwater_engine.settings import StageSettings
from slackwater_engine.state.log import LogMeta, StateLog
from slackwater_sql.compiler import compile_pipeline
from slackwater_sql.limits import StatementLimits
from slackwater_sql.postgres import parse_catalog

BATCH_ROWS = 4_000
TABLES = "CREATE TABLE s.notes (id bigint PRIMARY KEY, author bigint NOT NULL, text text NOT NULL);"
VIEW = "SELECT TRANSACTIONALLY n.id, n.author, length(n.text) AS length FROM s.notes n"
PLAN = compile_pipeline([("notes.sql", VIEW)], parse_catalog({"t.sql": TABLES}))


class FileMap:
    """Stands in for Spark's MapState, whose values are on disk, too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return ((self._folder / key[0].hex()).read_bytes(),)

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        (self._folder / key[0].hex()).write_bytes(value[0])

    def removeKey(self, key: tuple[Any, ...]) -> None:
        (self._folder / key[0].hex()).unlink()

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        for path in sorted(self._folder.iterdir()):
            yield (bytes.fromhex(path.name),), (path.read_bytes(),)

    def clear(self) -> None:
        for path in self._folder.iterdir():
            path.unlink()


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
        self._stage = BucketProcessor(PLAN, PLAN.stage(1), settings, SqlEvaluators())
        self._cells = [MemoryCell() for _ in range(buckets)]
        self._logs = [
            StateLog(cell, FileMap(folder / "log" / str(number))) for number, cell in enumerate(self._cells)
        ]
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
            packer.add("s.notes", "u", self._lsn, None, row)
        documents = 0
        for _, bucket, payload in packer.payloads():
            outcome = self._stage.process(bucket, [(0, payload)], self._logs[bucket], self._indexes[bucket])
            documents += sum(map(len, outcome.documents.values()))
        return documents

    def lose_indexes(self) -> None:
        for number, index in enumerate(self._indexes):
            index.close()
            self._indexes[number] = LmdbIndex(self._folder / "index" / "1" / str(number))

    def sizes(self) -> dict[str, int]:
        metas = [cell.value for cell in self._cells if cell.value is not None]
        known = [LogMeta("", b"", value[3], value[4], range(value[5], value[6])) for value in metas]
        return {
            "live_bytes": sum(meta.live_bytes for meta in known),
            "log_bytes": sum(meta.log_bytes for meta in known),
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
