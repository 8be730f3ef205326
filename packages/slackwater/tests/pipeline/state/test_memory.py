"""State that is larger than the memory given."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MEMORY = 80 << 20
"""By which the private memory of the process may grow, whatever the state's size."""


@pytest.mark.slow
def test_state_of_five_times_the_memory_is_filled_changed_and_rebuilt(tmp_path: Path) -> None:
    order = {"folder": str(tmp_path / "stage"), "rows": 220_000, "row_bytes": 2_000, "buckets": 8}
    script = Path(__file__).with_name("larger_than_memory.py")
    result = subprocess.run(
        [sys.executable, str(script), json.dumps(order)], capture_output=True, text=True, check=True
    )
    found = json.loads(result.stdout)
    assert found["live_bytes"] > 5 * MEMORY
    assert found["documents"] == {"fill": order["rows"], "change": order["rows"], "rebuild": 4_000}
    assert max(found["growth"].values()) < MEMORY, found
    assert found["log_bytes"] < 3 * found["live_bytes"], "what was replaced is dropped"
