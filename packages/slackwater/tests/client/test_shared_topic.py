"""A topic of several views, as readers see it: view by view as of a commit, and in groups of processes."""

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest
import zstandard

from slackwater.cli import main
from slackwater.client import PipelineViews, StateNotKeptError, TopicOutput, TransactionalConsumer, read_views
from slackwater.client.topic_views import TopicReaders
from slackwater.cuts import PipelineLog
from slackwater.dev import KafkaBroker
from slackwater.engine.payloads import Document, DocumentBatch
from slackwater.outputs.contract import Emit
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic
from slackwater.outputs.kafka.sink import KafkaSink
from slackwater.protocol import BatchHeader, CommitPosition, ConfigError, KafkaSettings, SystemClock
from slackwater_lab.fakes.topics import REGISTRATION
from slackwater_lab.topics import make_topics, read_to_end

pytestmark = pytest.mark.integration

CHILD = Path(__file__).parent / "member_of_group.py"
ROOT = Path(__file__).parents[4]
CUSTOMERS, COMMITS, BATCHES, SECONDS = 6, 5, 8, 120.0
VIEWS = ("lines", "orders")
SHARES = ["by unit", *(pytest.param(each, marks=pytest.mark.slow) for each in ("by partition", "everything"))]


class Shop:
    """A pipeline with two views in one topic; orders precede their lines."""

    def __init__(self, bootstrap: str, emit: Emit = Emit.TRANSACTIONS, plus: int = 0) -> None:
        self.name, self.kafka = f"p{uuid.uuid4().hex[:10]}", KafkaSettings(bootstrap)
        self.plus = plus
        """By this, the values of lines differ from what is right."""
        self.topic, self._batch = f"{self.name}.shop", 0
        outputs = tuple(
            OutputTopic(self.topic, 3, view=view, partition_by="customer_id", place=-number)
            for number, view in enumerate(VIEWS)
        )
        self.settings = KafkaSinkSettings(
            pipeline=self.name,
            outputs=outputs,
            emit=emit,
            kafka=self.kafka,
            replication_factor=1,
            request_timeout=timedelta(seconds=60),
        )
        self.written: list[tuple[str, str, str, int]] = []
        """Customer, view, key and commit LSN of all documents."""

    def publish(self, sink: KafkaSink) -> None:
        """A batch of some commits, each of which changes an order and its line of two customers."""
        first = COMMITS * self._batch
        found: dict[str, list[Document]] = {view: [] for view in VIEWS}
        for lsn in range(first + 1, first + COMMITS + 1):
            for customer in (lsn % CUSTOMERS, (lsn + 1) % CUSTOMERS):
                for view, key in (("orders", {"order": 1}), ("lines", {"order": 1, "line": lsn % 3})):
                    key = {"customer_id": customer, **key}
                    text = json.dumps(key)
                    gone = view == "lines" and lsn % 7 == 0
                    found[view].append((lsn, text.encode(), None if gone else self._document(view, key, lsn)))
                    self.written.append((str(customer), view, text, lsn))
        header = BatchHeader(
            source="inv",
            timeline=1,
            from_lsn=first,
            to_lsn=first + COMMITS,
            commit_ts_ms=1_000,
            event_count=1,
            transactions=tuple((500 + n, n, 1_000 * n) for n in range(first + 1, first + COMMITS + 1)),
        )
        pack = zstandard.ZstdCompressor(level=1).compress
        payloads = {n: (pack(msgspec.msgpack.encode(found[view])),) for n, view in enumerate(VIEWS)}
        sink.write("query", DocumentBatch(self._batch, header, payloads, f"state {self._batch}"))
        self._batch += 1

    def publish_all(self, batches: int) -> None:
        with closing(KafkaSink(self.settings)) as sink:
            sink.open()
            for _ in range(batches):
                self.publish(sink)

    def state(self, view: str, at: int) -> list[Any]:
        """The documents of a view as of a commit."""
        newest: dict[str, Any] = {}
        for _, name, key, lsn in self.written:
            if name == view and lsn <= at:
                gone = view == "lines" and lsn % 7 == 0
                newest[key] = None if gone else json.loads(self._document(view, json.loads(key), lsn))
        return sorted((each for each in newest.values() if each is not None), key=str)

    def _document(self, view: str, key: dict[str, int], lsn: int) -> bytes:
        return json.dumps({**key, "value": lsn + (self.plus if view == "lines" else 0)}).encode()


def shown(documents: Any) -> list[Any]:
    return sorted((json.loads(each) for each in documents), key=str)


@pytest.fixture
def shop(kafka_broker: KafkaBroker) -> Shop:
    return Shop(kafka_broker.bootstrap)


@pytest.fixture
def output(shop: Shop) -> Iterator[TopicOutput]:
    with closing(TopicOutput(shop.kafka, shop.name)) as opened:
        yield opened


def test_each_view_of_the_topic_is_read_by_itself_as_of_any_commit(shop: Shop, output: TopicOutput) -> None:
    shop.publish_all(3)
    orders, lines = f"{shop.topic}/orders", f"{shop.topic}/lines"
    assert list(output.views()) == [lines, orders]
    newest = read_views([output])
    for at, found in ((15, newest), (4, read_views([output], at=CommitPosition(1, 4)))):
        assert found.position == CommitPosition(1, at)
        assert {name: shown(each) for name, each in found.documents.items()} == {
            orders: shop.state("orders", at),
            lines: shop.state("lines", at),
        }
    one = read_views([output], [orders], key={"customer_id": 2, "order": 1})
    assert [each["customer_id"] for each in shown(one.documents[orders])] == [2]
    with pytest.raises(ConfigError, match=f"view '{shop.topic}' exists in none.*{orders}"):
        read_views([output], [shop.topic])


def test_with_latest_the_ends_of_batches_are_read(kafka_broker: KafkaBroker) -> None:
    shop = Shop(kafka_broker.bootstrap, Emit.LATEST)
    with closing(TopicOutput(shop.kafka, shop.name)) as output:
        shop.publish_all(2)
        name = f"{shop.topic}/lines"
        assert shown(read_views([output], [name]).documents[name]) == shop.state("lines", 10)
        earlier = read_views([output], [name], at=CommitPosition(1, COMMITS))
        assert shown(earlier.documents[name]) == shop.state("lines", COMMITS)
        with pytest.raises(StateNotKeptError, match="no batch ends at"):
            read_views([output], [name], at=CommitPosition(1, COMMITS - 1), timeout=timedelta(0))


def test_readers_of_a_pipeline_name_all_views_of_a_topic(shop: Shop) -> None:
    shop.publish_all(1)
    views = {view: f"{shop.topic}/{view}" for view in VIEWS}
    TopicReaders(shop.kafka, shop.name).switch(shop.name, 1, views)
    with pytest.raises(ConfigError, match=r"view 'lines'.*is in topic.*, too; name all views of a topic"):
        TransactionalConsumer(shop.kafka, PipelineViews(shop.name, "orders"), group=shop.name)
    both = PipelineViews(shop.name, *VIEWS)
    with TransactionalConsumer(shop.kafka, both, group=shop.name) as consumer:
        found = [next(iter(consumer)) for _ in range(COMMITS)]
    assert [(each.commit.lsn, len(each.records)) for each in found] == [(n, 4) for n in range(1, COMMITS + 1)]


@pytest.mark.parametrize("is_wrong", [False, True])
def test_revisions_are_compared_view_by_view(
    kafka_broker: KafkaBroker, capsys: pytest.CaptureFixture[str], is_wrong: bool
) -> None:
    old, new = Shop(kafka_broker.bootstrap), Shop(kafka_broker.bootstrap, plus=is_wrong)
    with closing(PipelineLog(old.kafka)) as log:
        log.ensure()
        for number, shop in enumerate((old, new), 1):
            shop.publish_all(number + 1)
            views = tuple(
                replace(REGISTRATION.views[0], name=view, output=shop.topic, format="", output_source="")
                for view in VIEWS
            )
            of_shop = replace(REGISTRATION, pipeline=shop.name, base_name=old.name, views=views)
            log.register(replace(of_shop, revision=number))
    keys = ("--key", "lines=customer_id,order,line", "--key", "orders=customer_id,order")
    ask = ["revise", "compare", old.name, *keys, "--bootstrap", kafka_broker.bootstrap, "--json"]
    assert main.run(ask) == is_wrong, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)["views"]
    at = 2 * COMMITS
    counts = {view: [each["equal"], each["different"]] for view, each in found.items()}
    lines, orders = (len(old.state(view, at)) for view in VIEWS)
    assert counts == {"lines": [0, lines] if is_wrong else [lines, 0], "orders": [orders, 0]}
    assert {(each["commit_lsn"], each["only_old"], each["only_new"]) for each in found.values()} == {
        (at, 0, 0)
    }
    assert found["lines"]["columns"] == ({"value": lines} if is_wrong else {})


def test_the_page_shows_what_runs_here() -> None:
    page = (ROOT / "docs" / "one-topic.md").read_text()
    (toml,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (python,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert toml in (ROOT / "pipelines" / "shop_topic" / "pipeline.toml").read_text()
    assert python in CHILD.read_text()


@pytest.mark.full
@pytest.mark.parametrize("share", SHARES)
def test_a_customer_arrives_in_order_and_once_though_members_are_killed(shop: Shop, share: str) -> None:
    """While batches are written, one of two is killed, another joins, and the killed one starts again."""
    target, bootstrap = f"{shop.name}.target", shop.kafka.bootstrap
    make_topics(bootstrap, [target], 1)

    def start(member: str) -> "subprocess.Popen[bytes]":
        arguments = (share, bootstrap, shop.topic, f"{shop.name}.group", target, member)
        process = subprocess.Popen((sys.executable, str(CHILD), *arguments), stderr=subprocess.DEVNULL)
        running.callback(process.wait, SECONDS)
        running.callback(process.kill)
        return process

    with ExitStack() as running, closing(KafkaSink(shop.settings)) as sink:
        sink.open()
        shop.publish(sink)
        one = start("one")
        start("two")
        await_condition(lambda: len(delivered(bootstrap, target)) > 0)
        for _ in range(BATCHES // 2):
            shop.publish(sink)
        one.kill()
        one.wait(SECONDS)
        start("three")
        for _ in range(BATCHES // 2):
            shop.publish(sink)
        start("one")
        await_condition(lambda: len(delivered(bootstrap, target)) >= len(shop.written))
    found = delivered(bootstrap, target)
    for customer in {each[0] for each in shop.written}:
        wanted = sorted((e for e in shop.written if e[0] == customer), key=lambda e: (e[3], e[1] == "lines"))
        assert [each for each in found if each[0] == customer] == wanted


def delivered(bootstrap: str, target: str) -> list[tuple[str, str, str, int]]:
    return [tuple(each) for m in read_to_end(bootstrap, target) for each in json.loads(m.value() or b"")]


def await_condition(condition: Any) -> None:
    clock, pause = SystemClock(), Event()
    deadline = clock.monotonic() + SECONDS
    while not condition():
        assert clock.monotonic() < deadline, "the condition did not come true in time"
        pause.wait(0.2)
