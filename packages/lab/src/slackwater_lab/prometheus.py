"""A real Prometheus beside a test, which scrapes what the product serves and is asked as Grafana asks it."""

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from slackwater.dev.server import LOOPBACK, free_port

_ASK_SECONDS = 60.0
_SCRAPE = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: slackwater
    static_configs:
      - targets: {targets}
"""


def prometheus_program() -> str | None:
    """Returns where Prometheus is installed; None: it is not."""
    return shutil.which("prometheus")


class Prometheus:
    """Scrapes pages once a second.

    Args:
        program: Where it is installed.
        folder: Its data and log; created.
        targets: ``HOST:PORT`` of each page; they need not answer yet.
    """

    def __init__(self, program: str, folder: Path, targets: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._address = f"{LOOPBACK}:{free_port()}"
        config = folder / "prometheus.yml"
        config.write_text(_SCRAPE.format(targets=json.dumps(list(targets))))
        self.command = (
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self._address}",
        )
        """Starts it; it ends with SIGTERM."""

    def answers(self, query: str) -> list[float]:
        """Asks for the values that a query has now; none while Prometheus does not answer yet.

        A quotient or a quantile of nothing is no value.

        Raises:
            ValueError: it refuses the query.
        """
        parameters = urlencode({"query": query})
        try:
            with urlopen(f"http://{self._address}/api/v1/query?{parameters}", timeout=_ASK_SECONDS) as page:
                answer: dict[str, Any] = json.load(page)
        except URLError as error:
            if getattr(error, "code", None) is not None:
                raise ValueError(f"{query}: {error}") from error
            return []
        values = [float(series["value"][1]) for series in answer["data"]["result"]]
        return [value for value in values if not math.isnan(value)]
