"""A revision begins with a copy of the state of another one that continues, killed or not, or is refused."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import duckdb
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

# In CI: packages/slackwater/tests/engine/test_copied_state.py (rows and documents),
# test_batch_loop.py (a run that begins with a copied state, or is to stop before),
# test_copied_state_refusals.py.
pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]

ORDERS_PIPELINE = Path(__file__).parents[4] / "pipelines" / "orders"
ORDERS, LINES = "inventory.orders", "inventory.order_lines"
SECONDS = 300.0
OLD = (ORDERS_PIPELINE / "views" / "orders_with_lines.sql").read_text()
NEW = {
    "customers": "SELECT TRANSACTIONALLY o.customer, count(*) AS orders, sum(o.total) AS total,"
    " min(o.id) AS first, max(o.total) AS largest FROM inventory.orders o GROUP BY o.customer",
    "everything": "SELECT TRANSACTIONALLY count(*) AS lines, sum(l.quantity) AS quantity"
    " FROM inventory.order_lines l",
    "lines_with_status": "SELECT TRANSACTIONALLY l.id, l.quantity, l.product, o.status"
    " FROM inventory.order_lines l LEFT JOIN inventory.orders o ON o.id = l.order_id",
    "orders_with_lines": OLD.replace("o.status", "upper(o.status) AS status"),
}
BEFORE = {"customers": NEW["customers"], "orders_with_lines": OLD}
KEYS = {"customers": "customer", "everything": None, "lines_with_status": "id", "orders_with_lines": "id"}

Inventory = Any  # these three are of conftest.py
Output = Any
StartPipeline = Callable[..., Any]


class Revisions:
    """Folders of a pipeline's revisions, and runs of them."""

    def __init__(self, folder: Path, inventory: Inventory, start: StartPipeline) -> None:
        self._folder, self._inventory, self._start = folder, inventory, start
        self.name, self.topic = f"p-{inventory.source}", f"out-{inventory.source}"

    def write(self, revision: int, views: Mapping[str, str], more: str = "", schema: str = "") -> Path:
        folder = self._folder / f"revision{revision}"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "views").mkdir(parents=True)
        (folder / "schema.sql").write_text(schema or (ORDERS_PIPELINE / "schema.sql").read_text())
        outputs = []
        for number, view in enumerate(sorted(views)):
            (folder / "views" / f"{view}.sql").write_text(views[view])
            outputs.append(f'[outputs.{view}]\ntopic = "{self.topic_of(revision, number, view)}"\n')
        head = f'name = "{self.name}"\nsource = "{self._inventory.source}"\nrevision = {revision}\n{more}\n'
        (folder / "pipeline.toml").write_text(head + "".join(outputs))
        return folder

    def topic_of(self, revision: int, number: int, view: str) -> str:
        """As the child process names the topics."""
        return self.topic + (f".v{revision}" if revision > 1 else "") + (f"-{view}" if number else "")

    def run(self, folder: Path, *, settings: Mapping[str, Any] | None = None, **order: Any) -> Any:
        return self._start(folder=str(folder), settings=settings or {}, **order)


@pytest.fixture
def revisions(tmp_path: Path, inventory: Inventory, start_pipeline: StartPipeline) -> Revisions:
    return Revisions(tmp_path, inventory, start_pipeline)


def judged(inventory: Inventory, sql: str, key: str | None) -> dict[Any, dict[str, Any]]:
    """The view over the current rows, computed by DuckDB in one piece."""
    text = sql.replace("TRANSACTIONALLY", "")
    if "lines" in text and "GROUP BY o.id" in text:
        text = text.replace("GROUP BY o.id", "GROUP BY ALL")
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'; CREATE SCHEMA inventory;")
        connection.execute((ORDERS_PIPELINE / "schema.sql").read_text().partition("-- A line")[0])
        for table, rows in ((ORDERS, inventory.orders), (LINES, inventory.lines)):
            for row in rows.values():
                marks = ",".join("?" * len(row))
                connection.execute(f"INSERT INTO {table} VALUES ({marks})", list(row.values()))  # noqa: S608
        found = connection.execute(f"SELECT to_json(v) FROM ({text}) v").fetchall()  # noqa: S608
    rows = [comparable(json.loads(document)) for (document,) in found]
    return {None if key is None else row[key]: row for row in rows}


def comparable(value: Any) -> Any:
    """Numbers by value, whatever their spelling; without times, which DuckDB spells in its own way."""
    match value:
        case dict():
            return {name: comparable(each) for name, each in value.items() if name != "created_at"}
        case list():
            return [comparable(each) for each in value]
        case bool() | None:
            return value
        case _:
            try:
                return Decimal(str(value))
            except InvalidOperation:
                return value


def shown(output: Output, topic: str, key: str | None) -> dict[Any, dict[str, Any]]:
    """The documents of a topic; no commit has two of one key."""
    records = output.records(topic)
    assert len({(lsn, name) for lsn, _, name, _ in records}) == len(records)
    state: dict[Any, dict[str, Any]] = {}
    for _, _, name, value in records:
        of_key = None if key is None else comparable(json.loads(name)[key])
        state.pop(of_key, None)
        if value is not None:
            state[of_key] = comparable(json.loads(value))
    return state


def assert_views(inventory: Inventory, output: Output, revisions: Revisions) -> None:
    for number, view in enumerate(sorted(NEW)):
        found = shown(output, revisions.topic_of(2, number, view), KEYS[view])
        assert found == judged(inventory, NEW[view], KEYS[view]), view


def assert_compared(inventory: Inventory, revisions: Revisions) -> None:
    """Both revisions are at one commit: what was not changed is the same there, what was changed is not."""
    keys = [word for view in BEFORE for word in ("--key", f"{view}={KEYS[view]}")]
    command = [sys.executable, "-m", "slackwater", "revise", "compare", revisions.name, *keys, "--json"]
    done = subprocess.run(
        [*command, "--bootstrap", inventory.bootstrap], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    views = json.loads(done.stdout)["views"]
    assert {view["commit_lsn"] for view in views.values()} == {inventory.lsn}
    counts = {name: [view[each] for each in ("equal", "different")] for name, view in views.items()}
    customers = len({order["customer"] for order in inventory.orders.values()})
    assert counts == {"customers": [customers, 0], "orders_with_lines": [0, len(inventory.orders)]}
    assert list(views["orders_with_lines"]["columns"]) == ["status"]


def go_on(inventory: Inventory, old: Any, transactions: int = 4) -> None:
    """Changes rows until the old revision shows them."""
    inventory.run(transactions)
    old.await_batch(lambda batch: batch["lsn"] == inventory.lsn)


def forget_beginning(inventory: Inventory, ends: Mapping[str, Sequence[int]]) -> None:
    """Removes what the topics hold below these offsets, as retention does."""
    admin = AdminClient({"bootstrap.servers": inventory.bootstrap})
    places = [
        TopicPartition(topic, number, offset)
        for topic, offsets in ends.items()
        for number, offset in enumerate(offsets)
    ]
    for done in admin.delete_records(places).values():
        done.result(SECONDS)


@pytest.mark.parametrize(
    ("emit", "crashes", "following"),
    [
        ("latest", [{"crash": ("progress", 0)}], 0),
        ("latest", [{"crash_write": 2}], 0),
        (
            "transactions",
            [*({"crash_write": number} for number in range(1, 9)), {"crash": ("collected", 0)}],
            0,
        ),
        ("transactions", [{"crash": ("committed", 0)}], 1),
        ("latest", [{"crash_write": 1}, {"crash": ("committed", 0)}], 1),
    ],
)
def test_it_begins_with_the_state_of_a_running_one_whatever_is_killed(
    inventory: Inventory,
    output: Output,
    revisions: Revisions,
    emit: str,
    crashes: Sequence[dict[str, Any]],
    following: int,
) -> None:
    """The topics no longer have their beginning, so nothing but the copy can give the rows."""
    first = revisions.write(1, BEFORE)
    inventory.run(30)
    old = revisions.run(first, settings={"available_now": False})
    old.await_batch(lambda batch: batch["lsn"] == inventory.lsn)
    ends = inventory.ends
    for _ in range(3):
        go_on(inventory, old)
    forget_beginning(inventory, ends)
    second = revisions.write(2, NEW, "buckets = 3")
    settings = {"copy_state_of": str(first), "available_now": False}
    for crash in crashes:
        killed = revisions.run(second, settings=settings, emit=emit, **crash)
        while not killed.has_ended:
            go_on(inventory, old, 1)
        assert killed.await_end() == -signal.SIGKILL, killed.last
    new = revisions.run(second, settings=settings, emit=emit, task_bytes=1_000)  # in several tasks
    begun = new.await_batch()
    shutil.rmtree(first)  # which nobody needs any more
    go_on(inventory, old, 10)
    new.await_batch(lambda batch: batch["lsn"] == inventory.lsn)
    assert new.stop() == 0
    go_on(inventory, old)
    again = revisions.run(second, settings={**settings, "available_now": True}, emit=emit)
    assert again.await_end() == 0, again.last
    assert again.batches[0]["batch"] == new.batches[-1]["batch"] + 1
    assert old.stop() == 0
    assert_views(inventory, output, revisions)
    assert_compared(inventory, revisions)
    assert begun["batch"] == following
    assert following or not begun["events"], "none is read for the first batch"
    segments = [path.name for path in (second.parent / "checkpoint.v2" / "segments").iterdir()]
    assert all(int(name.partition("-")[0]) <= again.batches[-1]["batch"] for name in segments)


def test_a_damaged_file_ends_the_run_before_anything_is_visible(
    inventory: Inventory, output: Output, revisions: Revisions, tmp_path: Path
) -> None:
    inventory.run(30)
    first, second = revisions.write(1, BEFORE), revisions.write(2, NEW)
    small = {"max_events_per_batch": 60}
    assert revisions.run(first, settings=small).await_end() == 0
    inventory.run(5)
    assert revisions.run(first, settings=small).await_end() == 0
    kept = {path: path.read_bytes() for path in (tmp_path / "checkpoint" / "segments").iterdir()}
    for path, data in kept.items():
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 8]) + data[-8:])
    settings = {"copy_state_of": str(first)}
    stopped = revisions.run(second, settings=settings)
    assert stopped.await_end() == 1
    assert "the copied state of another pipeline cannot be used: stage" in stopped.last["message"]
    assert "`slackwater state --check` names what is damaged" in stopped.last["message"]
    assert not stopped.batches
    for path, data in kept.items():
        path.write_bytes(data)
    run = revisions.run(second, settings=settings)
    assert run.await_end() == 0, run.last
    assert_views(inventory, output, revisions)


def test_a_table_of_a_source_begins_with_a_snapshot(
    inventory: Inventory, output: Output, revisions: Revisions
) -> None:
    inventory.run(30)
    views = {"orders_with_lines": OLD}
    first, second = revisions.write(1, views), revisions.write(2, views, 'emit = "transactions"')
    for _ in range(2):
        assert revisions.run(first).await_end() == 0
        inventory.run(5)
    prefix = f"again{inventory.source}".replace("-", "_")
    topic, toml = f"{prefix}.public.orders", second / "pipeline.toml"
    plain = f'topic = "{revisions.topic_of(2, 0, "orders_with_lines")}"'
    toml.write_text(toml.read_text().replace(plain, f'topic = "{topic}"\nformat = "debezium"'))
    run = revisions.run(second, settings={"copy_state_of": str(first)}, topic=topic)
    assert run.await_end() == 0, run.last
    records = output.records(f"{topic}.v2")
    begun = run.batches[0]["lsn"]
    changes = [(lsn, json.loads(value)) for lsn, _, _, value in records if value is not None]
    assert {change["op"] for lsn, change in changes if lsn == begun} == {"r"}
    assert not {change["op"] for lsn, change in changes if lsn > begun} & {"r"}
    state = {change["after"]["id"]: change["after"] for _, change in changes if change["after"]}
    gone = {change["before"]["id"] for _, change in changes if change["op"] == "d"}
    wanted = inventory.view()
    assert state.keys() - gone == wanted.keys()
    assert all(state[number]["status"] == wanted[number]["status"] for number in wanted)
