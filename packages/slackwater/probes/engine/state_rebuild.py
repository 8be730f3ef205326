"""What the log of a bucket costs: changing it, keeping it short, and making a lost index of it again.

Arguments: million rows, bytes of a row. One bucket is filled in order, then three times as many rows are
changed in random order in batches of 5,000; the log is kept in memory, so that the store's share is not in
the numbers. Seconds are of CPU. Prints one JSON line: `rebuild_seconds_per_million` of the filled bucket and
of the changed one, `batch_ms` (median, largest) of indexing and logging a batch's changes,
`write_amplification`: bytes logged per byte changed, `log_per_live`: the log's size in its contents', and
`private_mib`: by how much the rebuild let private memory grow.
"""

import json
import random
import secrets
import sys
import tempfile
import threading
from pathlib import Path
from statistics import median
from time import thread_time

import msgspec

from slackwater.engine.bucket import update_current
from slackwater.engine.index import IndexTransaction
from slackwater.engine.lmdb_index import LmdbIndex
from slackwater.engine.state.entry import Change, input_tag
from slackwater.engine.state.log import EMPTY_LOG, BucketLog, LogWrite, changes_bytes, log_write, place_writes
from slackwater.engine.state.manifest import SegmentReader, segment_path
from slackwater.engine.state.store import MemoryStore

BATCH = 5_000
ROWS_PER_KEY = 4


class Bucket:
    """A bucket that only keeps what it receives."""

    def __init__(self, folder: Path) -> None:
        self.head = EMPTY_LOG
        self.folder = folder
        self.index = LmdbIndex(folder / "0")
        self.changed = 0
        self.logged = 0
        self._store = MemoryStore()

    @property
    def log(self) -> BucketLog:
        """As its head says."""
        return BucketLog(1, 0, self.head, SegmentReader(self._store))

    def batch(self, changes: list[Change]) -> float:
        """Indexes and logs the changes; gives the seconds it took."""
        started = thread_time()
        log = self.log
        write = update_current(log, self.index, lambda contents: self._work(log, changes, contents))
        segment = secrets.token_hex(8)
        data, (update,) = place_writes(segment, [write])
        self._store.write(segment_path(segment), data)
        gone = {blob.segment for blob in self.head.blobs}
        self.head = update.after(self.head)
        seconds = thread_time() - started
        self._store.delete(map(segment_path, gone.difference(blob.segment for blob in self.head.blobs)))
        self.changed += changes_bytes(changes)
        self.logged += sum(blob.size for blob in write.blobs)
        return seconds

    def _work(self, log: BucketLog, changes: list[Change], contents: IndexTransaction) -> LogWrite:
        old = contents.get_many(name for name, _ in changes)
        contents.apply(changes)
        write = log_write(log, changes, changes_bytes(changes) - changes_bytes(old.items()), contents)
        contents.set_token(write.blobs[-1].token)
        return write

    def rebuild(self) -> tuple[float, int]:
        """Seconds, and bytes of private memory, that a new index takes."""
        self.index.close()
        self.index = LmdbIndex(self.folder / secrets.token_hex(4))
        base, watch = private_bytes(), PeakWatch()
        started = thread_time()
        update_current(self.log, self.index, lambda contents: contents.token)
        seconds = thread_time() - started
        return seconds, watch.stop() - base


class PeakWatch:
    """The largest private memory of the process while it watches."""

    def __init__(self) -> None:
        self._peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self._peak = max(self._peak, private_bytes())

    def stop(self) -> int:
        """Ends watching; the peak."""
        self._stop.set()
        self._thread.join()
        return self._peak


def private_bytes() -> int:
    """Anonymous pages of the process: no mapped files, no cache."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (found,) = (line for line in lines if line.startswith("RssAnon:"))
    return int(found.split()[1]) << 10


def entry(number: int, value: bytes) -> Change:
    """A row, as stages keep them."""
    key = msgspec.msgpack.encode([number // ROWS_PER_KEY])
    return key + input_tag(0) + msgspec.msgpack.encode([number]), value


def measure(folder: Path, rows: int, row_bytes: int) -> dict[str, object]:
    """Everything, for one bucket of this many rows."""
    rng = random.Random(1)
    bucket = Bucket(folder)
    filler = b"some text that compresses well " * (row_bytes // 31 + 1)

    def value() -> bytes:
        return rng.randbytes(row_bytes // 2) + filler[: row_bytes // 2]

    for start in range(0, rows, BATCH):
        bucket.batch([entry(number, value()) for number in range(start, start + BATCH)])
    filled, _ = bucket.rebuild()
    bucket.changed = bucket.logged = 0
    seconds = [
        bucket.batch([entry(number, value()) for number in rng.sample(range(rows), BATCH)])
        for _ in range(3 * rows // BATCH)
    ]
    changed, private = bucket.rebuild()
    return {
        "rows": rows,
        "live_mib": bucket.head.live_bytes >> 20,
        "rebuild_seconds_per_million": {
            "filled": round(filled * 1e6 / rows, 2),
            "changed": round(changed * 1e6 / rows, 2),
        },
        "private_mib": private >> 20,
        "batch_ms": {
            "median": round(median(seconds) * 1000, 1),
            "largest": round(max(seconds) * 1000, 1),
        },
        "write_amplification": round(bucket.logged / bucket.changed, 2),
        "log_per_live": round(bucket.head.log_bytes / bucket.head.live_bytes, 2),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="slackwater-rebuild-") as name:
        found = measure(Path(name), int(float(sys.argv[1]) * 1_000_000), int(sys.argv[2]))
    sys.stdout.write(json.dumps(found) + "\n")
