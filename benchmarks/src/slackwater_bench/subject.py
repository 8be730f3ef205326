"""The Slackwater that is measured: a Python environment in which it is installed."""

import sys
from dataclasses import dataclass
from pathlib import Path

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
