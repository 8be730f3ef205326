"""Notes when each cut becomes visible in Redis; prints one JSON line when the last one was seen.

Arguments: Redis URL, source. Standard input: the commit LSN at which to end, as soon as it is known. It is a
process of its own, so that nothing it shares an interpreter with delays what it sees.
"""

import json
import sys
import threading
from typing import Any

import redis

from slackwater.protocol import SystemClock
from slackwater.protocol.keys import cuts_key

BLOCK_MS = 100


def main() -> None:
    """Follows the stream of cuts as the driver of a pipeline does: a blocking read."""
    url, source = sys.argv[1:3]
    client: Any = redis.Redis.from_url(url)
    clock, key = SystemClock(), cuts_key(source, 1)
    last: list[int] = []
    threading.Thread(target=lambda: last.append(int(sys.stdin.readline() or 0)), daemon=True).start()
    seen: list[tuple[int, float]] = []
    position = b"0-0"
    while not last or not seen or seen[-1][0] < last[0]:
        answer = client.xread({key: position}, count=1000, block=BLOCK_MS)
        now = 1000 * clock.now().timestamp()
        for _, entries in answer:
            position = entries[-1][0]
            seen += [(int(entry.partition(b"-")[0]), now) for entry, _ in entries]
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
