"""Whole runs over real Kafka and Redis in processes of their own; the test plays connector and sidecar."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from slackwater.control import PipelineNode, PipelineState, Progress, make_topology
from slackwater.cuts import PipelineLog
from slackwater.protocol import KafkaSettings, format_position
from slackwater_lab.servers.storage import NameNode, ObjectStore

pytestmark = [pytest.mark.integration, pytest.mark.spark]

ORDERS_PIPELINE = Path(__file__).parents[4] / "pipelines" / "orders"

Inventory = Any  # these three are of conftest.py
Output = Any
StartPipeline = Callable[..., Any]


def assert_view(inventory: Inventory, output: Output) -> None:
    output.assert_view(inventory)


@pytest.mark.slow  # in fewer batches: the live run below
@pytest.mark.parametrize("emit", ["latest", "transactions"])
def test_the_output_is_the_view_of_the_database(
    inventory: Inventory, output: Output, start_pipeline: StartPipeline, emit: str
) -> None:
    inventory.run(120)
    run = start_pipeline(emit=emit)
    assert run.await_end() == 0, run.last
    assert_view(inventory, output)
    assert sum(batch["events"] for batch in run.batches) == inventory.events


@pytest.mark.full
@pytest.mark.parametrize("batches", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_bad_value_stops_the_pipeline_until_the_row_is_corrected(
    inventory: Inventory, output: Output, start_pipeline: StartPipeline, tmp_path: Path, batches: int
) -> None:
    """The batch is planned again: repeated as it was it would fail again."""
    folder = shutil.copytree(ORDERS_PIPELINE, tmp_path / "codes", ignore=shutil.ignore_patterns("tests"))
    view = "SELECT TRANSACTIONALLY o.id, o.status::INTEGER AS code FROM inventory.orders o"
    (folder / "views" / "orders_with_lines.sql").write_text(view)

    def commit(status: str) -> int:
        old = inventory.orders.get(1)
        numbers = {"line_count": 0, "total": "0.00", "created_at": "2026-11-20T10:00:00.000000Z"}
        inventory.put("inventory.orders", {"id": 1, "customer": "c", "status": status, **numbers}, old)
        lsn: int = inventory.commit()
        inventory.cut()
        return lsn

    for code in range(batches):  # in the first batch, and in a later one
        lsn = commit("no number")
        stopped = start_pipeline(folder=str(folder))
        assert stopped.await_end() == 1
        assert 'view orders_with_lines cannot be evaluated for key {"id":1}' in stopped.last["message"]
        assert f"commit LSN 0/{lsn:X}" in stopped.last["message"]
        assert 'inventory.orders o {"id":1,"status":"no number"}' in stopped.last["message"]
        commit(str(code))
        mended = start_pipeline(folder=str(folder))
        assert mended.await_end() == 0, mended.last
        assert output.final_state(f"out-{inventory.source}") == {1: {"id": 1, "code": code}}


def test_a_bad_value_is_withheld_in_one_view_and_named_until_the_row_is_corrected(
    inventory: Inventory, output: Output, start_pipeline: StartPipeline, tmp_path: Path
) -> None:
    """The other view, and the other keys, continue, over restarts, with the same commits."""
    folder = shutil.copytree(ORDERS_PIPELINE, tmp_path / "codes", ignore=shutil.ignore_patterns("tests"))
    view = "SELECT TRANSACTIONALLY o.id, o.status::INTEGER AS code FROM inventory.orders o"
    (folder / "views" / "codes.sql").write_text(view)
    definition = 'name = "both"\nsource = "inv"\n[outputs.codes]\non_error = "quarantine"\n'
    (folder / "pipeline.toml").write_text(definition)
    topic = f"out-{inventory.source}"

    def shown_after(emit: str, *statuses: str) -> tuple[dict[int, Any], Any]:
        for number, status in enumerate(statuses, 1):
            numbers = {"line_count": 0, "total": "0.00", "created_at": "2026-11-20T10:00:00.000000Z"}
            row = {"id": number, "customer": "c", "status": status, **numbers}
            inventory.put("inventory.orders", row, inventory.orders.get(number))
        inventory.commit()
        inventory.cut()
        run = start_pipeline(folder=str(folder), emit=emit)
        assert run.await_end() == 0, run.last
        orders = output.final_state(f"{topic}-orders_with_lines")
        assert {key: order["status"] for key, order in orders.items()} == dict(enumerate(statuses, 1))
        return output.final_state(topic), run.batches[-1]["withheld"]

    assert shown_after("transactions", "10", "20") == (
        {1: {"id": 1, "code": 10}, 2: {"id": 2, "code": 20}},
        {"codes": 0},
    )
    assert shown_after("transactions", "bad", "21") == ({2: {"id": 2, "code": 21}}, {"codes": 1})
    first = inventory.lsn
    assert shown_after("transactions", "bad", "22") == ({2: {"id": 2, "code": 22}}, {"codes": 1})
    assert shown_after("transactions", "11", "22") == (
        {1: {"id": 1, "code": 11}, 2: {"id": 2, "code": 22}},
        {"codes": 0},
    )

    bad, mended = output.records(f"{topic}-codes.quarantine")
    assert (bad[0], mended[0], mended[3]) == (first, inventory.lsn, None)
    named = json.loads(bad[3])
    assert (named["key"], named["view"], named["commit_lsn"]) == ('{"id":1}', "codes", first)
    assert "bad" in named["reason"]
    commits = [json.loads(each[3]) for each in output.records(f"{topic}-codes.quarantine.commits")]
    assert [each["commit_lsn"] for each in commits] == [
        json.loads(each[3])["commit_lsn"] for each in output.records(f"{topic}.commits")
    ]


@pytest.mark.parametrize(
    ("step", "following"),
    [
        pytest.param("collected", 1, marks=pytest.mark.slow),
        pytest.param("progress", 1, marks=pytest.mark.slow),
        pytest.param("committed", 2, marks=pytest.mark.slow),
    ],
)
def test_a_driver_killed_around_the_commit_neither_loses_nor_repeats(
    inventory: Inventory, output: Output, start_pipeline: StartPipeline, step: str, following: int
) -> None:
    """Collected: the state is kept, the transaction has not begun."""
    inventory.run(30)
    small = {"max_events_per_batch": 60}
    killed = start_pipeline(crash=(step, 1), settings=small)
    assert killed.await_end() == -signal.SIGKILL
    inventory.run(30)
    run = start_pipeline(settings=small)
    assert run.await_end() == 0, run.last
    assert run.batches[0]["batch"] == following
    assert not any(batch["was_covered"] for batch in run.batches)
    assert_view(inventory, output)


SPENDING = """
SELECT TRANSACTIONALLY w.customer, count(*) AS orders, sum(w.total) AS total
FROM orders_with_lines w GROUP BY w.customer
"""


@pytest.mark.slow
def test_two_views_show_the_same_commit_also_after_a_crash(
    inventory: Inventory, output: Output, start_pipeline: StartPipeline, tmp_path: Path
) -> None:
    folder = shutil.copytree(ORDERS_PIPELINE, tmp_path / "both", ignore=shutil.ignore_patterns("tests"))
    (folder / "views" / "spending.sql").write_text(SPENDING)
    (folder / "pipeline.toml").write_text('name = "both"\nsource = "inv"\n')
    order = {"folder": str(folder), "emit": "transactions", "settings": {"max_events_per_batch": 60}}
    inventory.run(30)
    killed = start_pipeline(crash=("committed", 1), **order)
    assert killed.await_end() == -signal.SIGKILL
    inventory.run(10)
    run = start_pipeline(**order)
    assert run.await_end() == 0, run.last
    assert run.batches[0]["batch"] == 2
    assert_view(inventory, output)
    topic = f"out-{inventory.source}"
    orders = by_commit(output.records(topic))
    spending = by_commit(output.records(f"{topic}-spending"))
    shown_orders: dict[str, Any] = {}
    shown_spending: dict[str, Any] = {}
    for lsn in sorted({*orders, *spending}):
        apply(shown_orders, orders.get(lsn, ()))
        apply(shown_spending, spending.get(lsn, ()))
        found = {row["customer"]: (row["orders"], Decimal(row["total"])) for row in shown_spending.values()}
        assert found == spent(shown_orders.values()), f"the views differ at {lsn}"
    assert len(spending) > 5


@pytest.mark.slow
def test_a_changed_view_is_refused_and_its_new_revision_is_built_beside_the_old_one(
    inventory: Inventory, output: Output, start_pipeline: StartPipeline, tmp_path: Path
) -> None:
    folder = shutil.copytree(ORDERS_PIPELINE, tmp_path / "changing", ignore=shutil.ignore_patterns("tests"))
    view, definition = folder / "views" / "orders_with_lines.sql", folder / "pipeline.toml"
    inventory.run(10)
    assert start_pipeline(folder=str(folder)).await_end() == 0
    before = output.records(f"out-{inventory.source}")
    view.write_text(view.read_text().replace("o.status,", "upper(o.status) AS state,"))
    inventory.run(10)
    refused = start_pipeline(folder=str(folder))
    assert refused.await_end() == 1
    assert refused.last["error"] == "StateError"
    assert "view orders_with_lines has another meaning" in refused.last["message"]
    assert "output state was no part of it, is VARCHAR" in refused.last["message"]
    assert output.records(f"out-{inventory.source}") == before
    definition.write_text("revision = 2\n" + definition.read_text())
    revision = start_pipeline(folder=str(folder))
    assert revision.await_end() == 0, revision.last
    assert output.records(f"out-{inventory.source}") == before
    found = output.final_state(f"out-{inventory.source}.v2")
    assert {key: row["state"] for key, row in found.items()} == {
        key: order["status"].upper() for key, order in inventory.orders.items()
    }
    assert (tmp_path / "checkpoint.v2" / "slackwater.json").exists()


@pytest.mark.slow
def test_a_pipeline_that_is_reset_makes_its_view_anew_from_the_beginning(
    inventory: Inventory, output: Output, start_pipeline: StartPipeline, tmp_path: Path
) -> None:
    inventory.run(10)
    checkpoint = {"checkpoint": str(tmp_path / "checkpoint"), "max_events_per_batch": 20}
    assert start_pipeline(settings=checkpoint).await_end() == 0
    before = output.records(f"out-{inventory.source}")
    inventory.run(10)
    command = [sys.executable, "-m", "slackwater", "pipeline", "reset", f"p-{inventory.source}"]
    done = subprocess.run(
        [*command, "--bootstrap", inventory.bootstrap, "--yes"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "by hand" not in done.stdout
    assert list((tmp_path / "checkpoint").glob("*")) == []
    run = start_pipeline(settings=checkpoint)
    assert run.await_end() == 0, run.last
    assert_view(inventory, output)
    assert sum(batch["events"] for batch in run.batches) == inventory.events
    first = output.records(f"out-{inventory.source}")[0]
    assert first == before[0], "it begins where it began"


def by_commit(records: Iterable[tuple[int, int, bytes, bytes | None]]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for lsn, _, key, value in records:
        found.setdefault(lsn, []).append((key.decode(), value))
    return found


def apply(state: dict[str, Any], changes: Iterable[tuple[str, bytes | None]]) -> None:
    for key, value in changes:
        if value is None:
            del state[key]
        else:
            state[key] = json.loads(value)


def spent(orders: Iterable[dict[str, Any]]) -> dict[str, tuple[int, Decimal]]:
    found: dict[str, tuple[int, Decimal]] = {}
    for row in orders:
        count, total = found.get(row["customer"], (0, Decimal(0)))
        found[row["customer"]] = (count + 1, total + Decimal(row["total"]))
    return found


@pytest.mark.full
def test_a_killed_driver_takes_its_jvm_and_workers_with_it(
    inventory: Inventory, start_pipeline: StartPipeline
) -> None:
    inventory.run(3)
    run = start_pipeline(settings={"available_now": False})
    run.await_batch()
    descendants = run.descendants()
    assert any("java" in command_line(process) for process in descendants)
    run.kill()
    _, alive = psutil.wait_procs(descendants, timeout=300)
    assert [process for process in alive if not has_ended(process)] == []
    assert shown_pipeline(inventory).state is PipelineState.RUNNING, "nobody can know yet"
    assert shown_pipeline(inventory, seconds_later=31).state is PipelineState.VANISHED


@pytest.mark.slow
def test_separate_executors_compute_the_view_see_no_secret_on_a_command_line_and_may_be_killed(
    inventory: Inventory, output: Output, start_pipeline: StartPipeline, tmp_path: Path
) -> None:
    """One while it has nothing to do, and all that are in the middle of a batch."""
    work = Path(pyspark.__file__).parent / "work"
    before = work.exists()
    inventory.run(10)
    secrets = {
        "spark_conf": {"spark.hadoop.fs.s3a.secret.key": "unguessable"},
        "kafka": {"sasl.password": "unguessable"},
    }
    cluster = {"available_now": False, "master": "local-cluster[2,1,512]", **secrets}
    run = start_pipeline(settings=cluster)
    run.await_batch()
    commands = [command_line(process) for process in run.descendants()]
    assert any("java" in command for command in commands)
    assert not any("unguessable" in command for command in commands), "visible to every account"
    executors = [process for process in run.descendants() if EXECUTOR in command_line(process)]
    assert len(executors) == 2
    executors[0].kill()
    inventory.run(10)
    run.await_batch(lambda batch: batch["lsn"] == inventory.lsn)
    assert run.stop() == 0
    assert_view(inventory, output)

    with Held(tmp_path / "checkpoint" / "segments") as held:
        inventory.run(10)
        run = start_pipeline(settings=cluster)
        held.await_reader(run)
        executors = [process for process in run.descendants() if EXECUTOR in command_line(process)]
    busy = [process for process in executors if process.children(recursive=True)]
    assert busy
    for process in busy:
        process.kill()
    run.await_batch(lambda batch: batch["lsn"] == inventory.lsn)
    assert run.stop() == 0
    assert_view(inventory, output)

    assert work.exists() == before
    assert list((tmp_path / "checkpoint" / "spark-home" / "work").iterdir())
    written = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert written
    assert [path for path in written if b"unguessable" in path.read_bytes()] == []


class Held:
    """Segments of a state that nobody can read within the block: a reader that opens one of them waits."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._aside = folder.with_name("aside")

    def __enter__(self) -> "Held":
        self._folder.rename(self._aside)
        self._folder.mkdir()
        for path in self._aside.iterdir():
            os.mkfifo(self._folder / path.name)
        return self

    def __exit__(self, *_: object) -> None:
        for path in self._aside.iterdir():
            path.rename(self._folder / path.name)
        self._aside.rmdir()

    def await_reader(self, run: Any) -> None:
        """Waits until a task of a run has opened one; that attempt fails, and the next one waits."""
        deadline = time.monotonic() + 400
        while not any(map(is_opened, self._folder.iterdir())):
            assert time.monotonic() < deadline
            assert not run.has_ended, run.last
            with suppress(subprocess.TimeoutExpired):
                run.process.wait(0.05)


def is_opened(fifo: Path) -> bool:
    """Whether a process waits for somebody to write."""
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_to_stop_in_the_middle_of_a_batch_cancels_it_and_ends_in_order(
    inventory: Inventory,
    output: Output,
    start_pipeline: StartPipeline,
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    """Without that it would wait for the batch, which never ends here."""
    inventory.run(5)
    assert start_pipeline().await_end() == 0
    before = output.records(f"out-{inventory.source}")
    inventory.run(5)
    with Held(tmp_path / "checkpoint" / "segments") as held:
        run = start_pipeline(settings={"available_now": False})
        held.await_reader(run)
        descendants = run.descendants()
        assert run.stop(number) == 0
        assert run.last == {"ended": True}
    _, alive = psutil.wait_procs(descendants, timeout=300)
    assert [process for process in alive if not has_ended(process)] == []
    assert output.records(f"out-{inventory.source}") == before
    assert start_pipeline().await_end() == 0
    assert_view(inventory, output)


@pytest.mark.slow  # with more machines, in CI: tests/system/test_journey.py
@pytest.mark.parametrize("store", ["object_store", "hdfs"])
def test_a_pipeline_goes_on_when_nothing_is_left_of_its_driver_s_machine(
    inventory: Inventory,
    output: Output,
    start_pipeline: StartPipeline,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    store: str,
) -> None:
    """Only Kafka and the checkpoint elsewhere, with a state that never became true."""
    machines = [tmp_path / name for name in ("first", "second")]
    server: ObjectStore | NameNode = request.getfixturevalue(store)
    settings: dict[str, Any] = {"max_events_per_batch": 40}
    if isinstance(server, NameNode):
        settings["checkpoint"] = f"{server.url}/{inventory.source}"
    else:
        settings["spark_conf"] = server.spark_conf()
        settings["checkpoint"] = f"s3a://{server.bucket}/{inventory.source}"
    for machine in machines:
        inventory.run(20)
        machine.mkdir()
        crash = {"crash": ("collected", 1)} if machine == machines[0] else {}
        own = {"index_root": str(machine / "index"), "spark_log": str(machine / "spark.log")}
        run = start_pipeline(settings={**settings, **own}, folder=str(moved(machine)), **crash)
        if crash:
            assert run.await_end() == -signal.SIGKILL
            shutil.rmtree(machine)
    assert run.await_end() == 0, run.last
    assert run.batches[0]["batch"] == 1
    assert_view(inventory, output)
    assert list((machines[1] / "index").iterdir())
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.slow
def test_object_storage_that_goes_away_ends_a_run_which_goes_on_when_it_is_back(
    inventory: Inventory, output: Output, start_pipeline: StartPipeline, tmp_path: Path
) -> None:
    store = ObjectStore(tmp_path / "objects")
    store.start()
    checkpoint = {"spark_conf": store.spark_conf(), "checkpoint": f"s3a://{store.bucket}/orders"}
    inventory.run(20)
    run = start_pipeline(settings={**checkpoint, "available_now": False})
    run.await_batch(lambda batch: batch["lsn"] == inventory.lsn)
    store.kill()
    inventory.run(20)
    assert run.await_end() == 1
    assert f"checkpoint {checkpoint['checkpoint']}: " in run.last["message"], run.last
    assert store.secret_key not in run.last["message"]
    refused = start_pipeline(settings=checkpoint)
    assert refused.await_end() == 1
    assert refused.last["error"] == "UnavailableError"
    assert "start again when the checkpoint's file system works" in refused.last["message"]
    store.start()
    again = start_pipeline(settings=checkpoint)
    assert again.await_end() == 0, again.last
    assert_view(inventory, output)
    store.stop()


def moved(machine: Path) -> Path:
    """Puts the pipeline's folder onto a machine."""
    return shutil.copytree(ORDERS_PIPELINE, machine / "orders", ignore=shutil.ignore_patterns("tests"))


@pytest.mark.slow
def test_a_poisoned_store_is_named_and_nothing_is_published_until_it_is_restored(
    inventory: Inventory, output: Output, start_pipeline: StartPipeline, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    inventory.run(10)
    assert start_pipeline().await_end() == 0
    before = output.records(f"out-{inventory.source}")
    inventory.run(10)
    for folder, error in (("manifests", "StateError"), ("segments", "SlackwaterError")):
        shutil.copytree(checkpoint / folder, tmp_path / folder)
        for poison in (Path.unlink, cut_off):
            for path in (checkpoint / folder).iterdir():
                poison(path)
            run = start_pipeline()
            assert run.await_end() == 1
            assert run.last["error"] == error, run.last
            assert any(path.name in run.last["message"] for path in (tmp_path / folder).iterdir())
            assert "estore the checkpoint or start with a new one" in run.last["message"]
            assert output.records(f"out-{inventory.source}") == before
            shutil.copytree(tmp_path / folder, checkpoint / folder, dirs_exist_ok=True)
    assert start_pipeline().await_end() == 0
    assert_view(inventory, output)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def command_line(process: psutil.Process) -> str:
    """Empty when the process has ended."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def has_ended(process: psutil.Process) -> bool:
    """Also one that nobody has waited for yet."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def processes(run: Any, word: str) -> list[psutil.Process]:
    """The processes of a run whose command line has a word."""
    return [process for process in run.descendants() if word in command_line(process)]


EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
JVM = "org.apache.spark.deploy.SparkSubmit"
WORKERS = "slackwater.pipeline.worker_daemon"


def shown_pipeline(inventory: Inventory, *, seconds_later: int = 0) -> PipelineNode:
    """What the topology shows of the pipeline of the inventory's source, perhaps some time later."""
    log = PipelineLog(KafkaSettings(inventory.bootstrap))
    entries = log.read()
    log.close()
    [cut] = inventory.newest_cuts()
    now_ms = time.time_ns() // 1_000_000 + 1_000 * seconds_later
    topology = make_topology(entries, {inventory.source: cut}, now_ms)
    [shown] = [each for each in topology.pipelines if each.source == inventory.source]
    return shown


def await_shown(inventory: Inventory, run: Any, is_wanted: Callable[[PipelineNode], bool]) -> None:
    """Waits until a live run has reported what is wanted."""
    deadline = time.monotonic() + 400
    while not is_wanted(shown_pipeline(inventory)):
        assert time.monotonic() < deadline
        assert not run.has_ended, run.last


@pytest.mark.full
def test_a_live_run_stops_in_order_and_another_one_goes_on_without_redis(
    inventory: Inventory, output: Output, start_pipeline: StartPipeline, tmp_path: Path
) -> None:
    """Also when the processes that compute its batches were killed before: their tasks are repeated.

    The topology shows them all; without Redis, too. Another pipeline of the name is refused meanwhile.
    """
    inventory.run(10)
    run = start_pipeline(settings={"available_now": False})
    run.await_batch()
    shown = shown_pipeline(inventory)
    assert (shown.state, shown.name, shown.pid) == ("running", run.order["name"], run.process.pid)
    assert [(view.name, view.output) for view in shown.views] == [
        ("orders_with_lines", f"out-{inventory.source}")
    ]
    other = start_pipeline(
        topic=f"other-{inventory.source}", settings={"checkpoint": str(tmp_path / "other")}
    )
    assert other.await_end() == 1
    assert other.last["error"] == "StateError"
    assert f"is taken: a pipeline from source {inventory.source} to kafka out-" in other.last["message"]
    assert f"(process {run.process.pid})" in other.last["message"]
    assert not (tmp_path / "other" / "slackwater.json").exists()
    topics = AdminClient({"bootstrap.servers": inventory.bootstrap}).list_topics(timeout=300).topics
    assert f"other-{inventory.source}" not in topics
    workers = [child for daemon in processes(run, WORKERS) for child in daemon.children()]
    assert workers
    for worker in workers:
        worker.kill()
    inventory.run(10)
    run.await_batch(lambda batch: batch["lsn"] == inventory.lsn)
    await_shown(inventory, run, lambda shown: shown.progress is Progress.UP_TO_DATE)
    assert run.stop() == 0
    assert run.last == {"ended": True}
    shown = shown_pipeline(inventory)
    assert (shown.state, shown.behind_ms, shown.run_events) == ("left", 0, inventory.events)
    before = inventory.events
    inventory.run(10)
    assert shown_pipeline(inventory).progress is Progress.BEHIND
    run = start_pipeline(settings={"redis_url": "redis://127.0.0.1:1/0"})
    assert run.await_end() == 0, run.last
    shown = shown_pipeline(inventory)
    assert (shown.state, shown.behind_ms, shown.pid) == ("left", 0, run.process.pid)
    assert shown.run_events == inventory.events - before
    assert sum(batch["events"] for batch in run.batches) == inventory.events - before
    assert_view(inventory, output)


@pytest.mark.slow
def test_a_record_that_cannot_be_read_stops_the_run_with_its_place(
    inventory: Inventory, output: Output, start_pipeline: StartPipeline
) -> None:
    inventory.run(3)
    inventory.raw("inventory.orders", b'{"id":4}', b'{"before":')
    inventory.run(3)
    run = start_pipeline()
    assert run.await_end() == 1
    assert run.last["error"] == "SlackwaterError"
    assert f"topic {inventory.source}.inventory.orders, partition 0, offset" in run.last["message"]
    assert "BadInputError" in run.last["message"]
    assert output.records(f"out-{inventory.source}") == []


@pytest.mark.slow
def test_a_pipeline_that_starts_before_its_source_goes_on_when_a_row_that_is_too_large_is_mended(
    inventory: Inventory, output: Output, start_pipeline: StartPipeline, tmp_path: Path
) -> None:
    """A batch that is refused is planned again."""
    run = start_pipeline(settings={"available_now": False})
    await_file(tmp_path / "checkpoint" / "slackwater.json", run)
    inventory.run(5)
    assert run.await_batch()["batch"] == 0
    limit_records(inventory.bootstrap, f"out-{inventory.source}", 20_000)
    old = next(iter(inventory.orders.values()))
    large = {**old, "status": random.Random(1).randbytes(20_000).hex()}
    inventory.put("inventory.orders", large, old)
    lsn = inventory.commit()
    inventory.cut()
    assert run.await_end() == 1
    assert run.last["error"] == "OutputRefusedError"
    place = f"view 'orders_with_lines' for topic 'out-{inventory.source}', key {{\"id\":{old['id']}}}"
    assert f"{place}, commit LSN {format_position(lsn)}" in run.last["message"]
    inventory.put("inventory.orders", {**old, "status": "mended"}, large)
    inventory.run(5)
    run = start_pipeline()
    assert run.await_end() == 0, run.last
    assert_view(inventory, output)


def await_file(path: Path, run: Any) -> None:
    deadline = time.monotonic() + 400
    while not path.exists():
        assert time.monotonic() < deadline
        assert not run.has_ended, run.last
        with suppress(subprocess.TimeoutExpired):
            run.process.wait(0.2)


def limit_records(bootstrap: str, topic: str, size: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(20)


@pytest.mark.slow  # refusals: sink/test_exactly_once.py
def test_a_second_pipeline_of_the_same_name_is_refused_and_disturbs_nobody(
    inventory: Inventory, output: Output, start_pipeline: StartPipeline, tmp_path: Path
) -> None:
    inventory.run(5)
    first = start_pipeline(settings={"available_now": False})
    first.await_batch()
    second = start_pipeline(settings={"checkpoint": str(tmp_path / "other")})
    assert second.await_end() == 1
    assert second.last["error"] == "StateError"
    assert "is taken" in second.last["message"]
    assert not (tmp_path / "other" / "slackwater.json").exists()
    inventory.run(5)
    first.await_batch(lambda batch: batch["lsn"] == inventory.lsn)
    assert first.stop() == 0
    assert_view(inventory, output)


@pytest.mark.slow  # fencing: sink/test_exactly_once.py
def test_of_two_runs_with_one_checkpoint_one_ends_and_nothing_is_lost_or_repeated(
    inventory: Inventory, output: Output, start_pipeline: StartPipeline
) -> None:
    inventory.run(5)
    first = start_pipeline(settings={"available_now": False})
    first.await_batch()
    second = start_pipeline(settings={"available_now": False})
    deadline = time.monotonic() + 900
    while not (first.has_ended or second.has_ended):
        assert time.monotonic() < deadline, "two runs continue side by side"
        inventory.run(1)
        with suppress(subprocess.TimeoutExpired):
            first.process.wait(0.5)
    loser, winner = (first, second) if first.has_ended else (second, first)
    assert loser.await_end() == 1
    assert loser.last["error"] == "OvertakenError", loser.last
    [jvm] = processes(winner, JVM)
    jvm.terminate()
    assert winner.await_end() == 1
    assert winner.last["error"] == "SlackwaterError"
    inventory.run(5)
    assert start_pipeline().await_end() == 0
    assert_view(inventory, output)


@pytest.mark.parametrize("emit", ["latest", "transactions"])
def test_rows_leave_a_view_when_commit_times_say_so(
    inventory: Inventory, output: Output, start_pipeline: StartPipeline, tmp_path: Path, emit: str
) -> None:
    folder = shutil.copytree(ORDERS_PIPELINE, tmp_path / "recent", ignore=shutil.ignore_patterns("tests"))
    view = "SELECT TRANSACTIONALLY id FROM inventory.orders WHERE created_at > now() - INTERVAL 1 HOUR"
    (folder / "views" / "orders_with_lines.sql").write_text(view)
    start = datetime(2026, 11, 20, 10, tzinfo=UTC)

    def commit(number: int, at: timedelta) -> int:
        row = {"id": number, "customer": "c", "status": "s", "line_count": 0, "total": "0.00"}
        created = (start + at).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        inventory.put("inventory.orders", {**row, "created_at": created}, None)
        lsn: int = inventory.commit(int((start + at).timestamp() * 1000))
        inventory.cut()
        return lsn

    def run() -> None:
        found = start_pipeline(folder=str(folder), emit=emit)
        assert found.await_end() == 0, found.last

    commit(1, timedelta())
    commit(2, timedelta(minutes=10))
    run()
    topic = f"out-{inventory.source}"
    assert set(output.final_state(topic)) == {1, 2}
    lsn = commit(3, timedelta(minutes=60))  # the moment itself is not within the hour
    commit(4, timedelta(minutes=69))
    run()
    assert set(output.final_state(topic)) == {2, 3, 4}
    if emit == "transactions":
        changes = dict(by_commit(output.records(topic))[lsn])
        assert {key: value is None for key, value in changes.items()} == {'{"id":1}': True, '{"id":3}': False}
