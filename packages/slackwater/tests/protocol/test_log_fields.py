"""What every record says, and which of its fields may be left out."""

import json
import logging
import subprocess
import sys
import threading

import pytest

from slackwater.protocol import log_fields as module
from slackwater.protocol.log_fields import FIELDS, WORKER_VARIABLE, log_fields, log_line, set_log_fields

RECORD = logging.makeLogRecord(
    {"name": "a.b", "levelno": 30, "levelname": "WARNING", "msg": "waits for %s", "args": ("x",)}
)
WORKER = """
import logging
from slackwater.protocol.log_fields import configure_worker_logging
configure_worker_logging()
logging.getLogger("task").info("nothing")
logging.getLogger("task").warning("bucket %d is slow", 7, extra={"bucket": 7})
"""


@pytest.fixture(autouse=True)
def own_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_process", {})


def test_a_record_has_the_fields_in_their_order_and_no_others() -> None:
    set_log_fields(service="run", source="inv", pipeline="orders")
    try:
        raise ValueError("no")
    except ValueError:
        record = logging.makeLogRecord(RECORD.__dict__ | {"exc_info": sys.exc_info(), "bucket": 7})
    line = log_line(record)
    assert [name for name in line if name in FIELDS] == list(FIELDS)
    assert set(line) - set(FIELDS) == {"bucket"}
    assert (line["event"], line["text"]) == ("waits for %s", "waits for x")
    assert (line["service"], line["source"], line["pipeline"]) == ("run", "inv", "orders")


def test_what_there_is_not_is_left_out() -> None:
    assert not {"source", "pipeline", "error"} & log_line(RECORD).keys()


def test_a_thread_says_which_of_several_sources_it_serves() -> None:
    set_log_fields(service="sidecar")
    found: dict[str, str] = {}

    def serve(source: str) -> None:
        with log_fields(source=source):
            together.wait(60)
            found[source] = log_line(RECORD)["source"]

    together = threading.Barrier(2)
    threads = [threading.Thread(target=serve, args=(name,)) for name in ("inv", "crm")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"inv": "inv", "crm": "crm"}
    assert "source" not in log_line(RECORD)


def test_what_a_record_says_itself_counts_most() -> None:
    with log_fields(source="inv"):
        assert log_line(logging.makeLogRecord({"source": "crm"}))["source"] == "crm"


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_worker_logs_as_its_driver_does(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_log_fields(service="run", source="inv", pipeline="orders")
    monkeypatch.setattr(module, "_format", form)
    told = {WORKER_VARIABLE: module.worker_logging()}
    done = subprocess.run(
        [sys.executable, "-c", WORKER], env=told, capture_output=True, text=True, check=True
    )
    (line,) = done.stderr.splitlines()
    if form == "text":
        assert line == "WARNING:task:bucket 7 is slow"
    else:
        said = json.loads(line)
        assert (said["service"], said["pipeline"], said["bucket"]) == ("worker", "orders", 7)
        assert said.keys() == FIELDS.keys() - {"error"} | {"bucket"}
