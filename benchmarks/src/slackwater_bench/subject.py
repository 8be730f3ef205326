"""The Slackwater that is measured: a Python environment in which it is installed."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slackwater_testing.errors import RunFailedError

PROBES = Path(__file__).parent / "probes"


@dataclass(frozen=True, slots=True)
class Subject:
    """An installed Slackwater, used through its command and through probes.

    Probes are scripts of this benchmark that import the product's libraries and run in the subject's
    environment, so that another commit can be measured with the same probe.
    """

    python: Path
    """The environment's interpreter."""
    label: str = "head"

    @classmethod
    def here(cls) -> "Subject":
        """The environment of this process."""
        return cls(Path(sys.executable))

    def command(self, *arguments: str) -> list[str]:
        """The ``slackwater`` command of this environment."""
        return [str(self.python), "-m", "slackwater", *arguments]

    def probe(self, name: str, *arguments: str) -> list[str]:
        """A probe; it imports nothing of the benchmark itself."""
        return [str(self.python), "-P", str(PROBES / f"{name}.py"), *arguments]


SECONDS = 300.0


def run_probe(subject: Subject, name: str, *arguments: object, seconds: float = SECONDS) -> Any:
    """Runs a probe to its end and returns what it found.

    Raises:
        RunFailedError: it failed (another commit may lack what the probe needs), or takes longer.
    """
    command = subject.probe(name, *map(str, arguments))
    what = f"probe {name} in the environment of {subject.label}"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise RunFailedError(what, f"did not end within {seconds:g} s") from None
    if done.returncode != 0:
        raise RunFailedError(what, f"exit code {done.returncode}:\n{done.stderr[-1500:]}")
    return json.loads(done.stdout.splitlines()[-1])
