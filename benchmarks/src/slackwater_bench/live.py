"""Live: a real database and connector at a steady rate; time from commit to visible.

Runs the demo, which measures the lag of every source transaction from its commit time in PostgreSQL to the
moment a ``read_committed`` consumer got the commit record, and judges every document.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path


def run_live(seconds: int, rate: int) -> dict[str, object]:
    """One run; returns what goes into the result line.

    Raises:
        RuntimeError: the demo failed or found a fault; its own messages say which.
    """
    with tempfile.TemporaryDirectory(prefix="slackwater-live-") as folder:
        numbers = Path(folder) / "numbers.json"
        command = [sys.executable, "-m", "slackwater", "demo", "--json", str(numbers)]
        command += ["--seconds", str(seconds), "--rate", str(rate), "--folder", str(Path(folder) / "stack")]
        code = subprocess.run(command, check=False, stdout=sys.stderr).returncode
        if code != 0:
            raise RuntimeError(f"the demo ended with exit code {code}")
        found = json.loads(numbers.read_text())
    return {
        "options": {"seconds": seconds, "rate": rate},
        "transactions": found["source_transactions"],
        "events": found["events"],
        "events_per_second": round(found["events"] / found["seconds"]),
        "commits": found["commits"],
        "documents": found["documents"],
        "lag_ms": found["lag"],
        "torn": found["findings"],
        "torn_without_slackwater": [found["naive_torn"], found["naive_published"]],
    }
