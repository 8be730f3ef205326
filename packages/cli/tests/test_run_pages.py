"""What a run answers over HTTP."""

import logging
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slackwater.run_pages import answering
from slackwater_protocol.metrics import RUN_METRICS
from slackwater_sidecar import HttpSettings
from slackwater_sidecar.errors import SidecarConfigError
from slackwater_spark.pipeline import RunMonitor

ANYWHERE = HttpSettings(address="127.0.0.1:0")


def asked(address: str | None, path: str) -> str:
    with urlopen(f"{address}{path}", timeout=60) as answer:  # noqa: S310 - of this machine
        return str(answer.read().decode())


def test_metrics_are_answered_while_the_run_lasts() -> None:
    monitor = RunMonitor("orders", "inv")
    with answering(ANYWHERE, monitor) as address:
        logging.getLogger("anybody").error("something failed")
        text = asked(address, "/metrics")
        assert "true" in asked(address, "/healthz")
        with pytest.raises(HTTPError, match="404"):
            asked(address, "/")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert list(families) == [metric.name.removesuffix("_total") for metric in RUN_METRICS]
    samples = families["slackwater_run_log_records"].samples
    assert {s.labels["level"]: s.value for s in samples} == {"warning": 0, "error": 1}
    assert samples[0].labels.items() >= {"source": "inv", "pipeline": "orders"}.items()
    logging.getLogger("anybody").error("something failed after it")
    assert monitor.read(RUN_METRICS[-1])[-1][1] == 1


def test_without_an_address_nobody_is_answered() -> None:
    with answering(None, RunMonitor("orders", "inv")) as address:
        assert address is None


def test_an_address_that_is_taken_is_refused() -> None:
    monitor = RunMonitor("orders", "inv")
    with (
        answering(ANYWHERE, monitor) as address,
        pytest.raises(SidecarConfigError),
        answering(HttpSettings(address=urlsplit(address or "").netloc), monitor),
    ):
        pass
