"""Every line of the list of a role is needed: without it, the role cannot do its work. Real brokers.

``test_acl.py`` shows that each role works with the list that `slackwater acl` prints.
"""

import io
import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from slackwater.api import open_views
from slackwater.cli import main
from slackwater.client import (
    ByUnit,
    ChangeTopics,
    ConsumerSettings,
    OutputTopics,
    PipelineViews,
    TopicOutput,
    TransactionalConsumer,
    TransactionalProducer,
    open_leases,
    read_views,
    take_lease,
)
from slackwater.client.inputs import Inputs, Share
from slackwater.client.topic_views import TopicReaders
from slackwater.cuts import CutLog, LeaseLog, PipelineLog
from slackwater.kafka.reader import TopicReader
from slackwater.pipeline import load_pipeline
from slackwater.pipeline.definition import rights_of as rights_of_pipeline
from slackwater.pipeline.leases import LeaseHolder
from slackwater.protocol import (
    CommitPosition,
    ConfigError,
    KafkaSettings,
    Lease,
    PipelineReport,
    RegistrySettings,
    RunEnd,
    Servers,
    SourceTopics,
    SystemClock,
    UnavailableError,
)
from slackwater.protocol.keys import (
    LEASES_TOPIC,
    PIPELINES_TOPIC,
    avro_commit_topic,
    commit_topic,
    cut_log_topic,
)
from slackwater.protocol.rights import (
    Operation,
    Resource,
    Right,
    consumer_rights,
    operator_rights,
    pipeline_rights,
    producer_rights,
    reader_rights,
    sidecar_rights,
    source_commit_rights,
    switched_rights,
    switching_rights,
    viewer_rights,
)
from slackwater_lab.debezium.records import snapshot_notifications, snapshot_value
from slackwater_lab.errors import WorkRefusedError
from slackwater_lab.fakes.outputs import ChangeWriter, KafkaTopics
from slackwater_lab.fakes.registry import RegistryServer
from slackwater_lab.fakes.sources import SyntheticSource
from slackwater_lab.fakes.topics import REGISTRATION, make_cut
from slackwater_lab.generator.fill import TopicFiller
from slackwater_lab.programs import Program, slackwater_command, stated_connector
from slackwater_lab.publishing import SOURCE, published_revisions, publishing_pipeline
from slackwater_lab.secured_servers import SecuredServers
from slackwater_lab.trials import Trial, World, check_output, superfluous
from slackwater_lab.watching import wait_until
from slackwater_lab.workloads.orders import OrdersWorkload
from slackwater_sidecar.commits import SourceCommits
from slackwater_sidecar.settings import SidecarSettings

pytestmark = [pytest.mark.system, pytest.mark.spark]

PIPELINE = Path(__file__).parents[2] / "pipelines" / "orders"
TABLE = "public.invoice"
SECONDS = 600.0
DAMAGED = b'{"v":2,"source":7}'
"""A record of a cut log that nobody can read."""
LOOKED_AT = "looked-at"
"""A source with a sidecar, for who changes nothing of it."""
TRIED = "tried"
"""The user of trials."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServers]:
    """Let the user who is tried do nothing at first."""
    with SecuredServers(tmp_path_factory.mktemp("secured"), {TRIED: "password"}) as running:
        yield running


@pytest.fixture(scope="module")
def running() -> Iterator[ExitStack]:
    """Ends what trials have started."""
    with ExitStack() as stack:
        yield stack


def read(
    kafka: KafkaSettings, inputs: Inputs, group: str, share: Share | None = None, *, seconds: float
) -> None:
    with TransactionalConsumer(kafka, inputs, group=group, share=share) as consumer:
        if consumer.poll(timedelta(seconds=seconds)) is None:
            raise WorkRefusedError("nothing was read")


def write(kafka: KafkaSettings, source: str) -> None:
    """Writes twice: the second producer reads where the first one ended."""
    for number in range(2):
        with TransactionalProducer(kafka, source) as producer:
            producer.make_table(TABLE)
            with producer.transaction() as transaction:
                transaction.insert(TABLE, {"id": number}, {"total": 120})


def publish(world: World, emit: str = "transactions") -> str:
    """Publishes three commits of a view of a pipeline, with all rights; returns its topic."""
    topic, servers = f"{world.name}.one", Servers(world.plain)
    output = f'topic = "{topic}"'
    with publishing_pipeline(
        world.folder / world.name, view="one", output=output, servers=servers, emit=emit
    ) as made:
        for number in (1, 2, 3):
            made.publish({1: number})
    return topic


def command(world: World, *arguments: str) -> str:
    """Runs a command as the tried user in this process; returns what it prints."""
    written, complained = io.BytesIO(), io.StringIO()
    environment = mock.patch.dict(os.environ, world.servers.environment(world.user, "scram"))
    with environment, redirect_stdout(io.TextIOWrapper(written)) as output, redirect_stderr(complained):
        code = main.run(arguments)
        output.flush()
    said = written.getvalue().decode()
    check_output(complained.getvalue())
    if code != 0:
        raise WorkRefusedError(f"{' '.join(arguments)}: {said}{complained.getvalue()}")
    return said


# --- what each role does


def sidecar(world: World, *tables: str) -> Trial:
    """Finds an initial snapshot complete, then a transaction, and sees the connector's heartbeats."""
    redis = f"redis://127.0.0.1:{world.servers.redis.port}"
    source = SyntheticSource(world.plain.bootstrap, redis, partitions=1)
    world.running.callback(source.close)
    source.create_silent()
    for table in source.tables:
        source.put(table, 0, snapshot_value(table, 50, {"id": 1}))
    for told in snapshot_notifications(dict.fromkeys(source.tables, 1)):
        source.put("notifications", 0, told)
    source.flush()
    topics = SourceTopics(source.name)
    source.admin.create_topics([NewTopic(topics.heartbeats, 1, 1)])[topics.heartbeats].result(SECONDS)
    heart = Producer({"bootstrap.servers": world.plain.bootstrap, "enable.idempotence": True})
    heart.produce(topics.heartbeats, b"{}")
    assert heart.flush(SECONDS) == 0

    def has_heartbeat() -> bool:
        status = source.store.status(source.name)
        return status is not None and status.connector is not None and bool(status.connector.heartbeat_ms)

    settings = {"SIDECAR_TABLES": ",".join(tables)} if tables else {}

    def work() -> None:
        with world.program("sidecar", "--source", source.name, **settings) as program:
            run_until(world, program, lambda: has_cut(world, source.name))
            source.commit(1, 2)
            run_until(world, program, lambda: source.logged()[-1].lsn == source.newest_lsn)
            run_until(world, program, has_heartbeat)

    return Trial(sidecar_rights(topics, tables or None), work)


def sidecar_with_commit_records(world: World) -> Trial:
    """Writes the commit record of a cut, and continues after it when it has begun again."""
    log = world.running.enter_context(closing(CutLog(world.name, KafkaSettings(world.plain.bootstrap))))
    log.ensure_topic()
    registry = world.running.enter_context(RegistryServer())
    servers = Servers(world.kafka, registry=RegistrySettings(url=registry.url))
    settings = SidecarSettings(source=world.name, servers=servers, commit_format="avro")
    place = avro_commit_topic(world.name), 0

    def has_records(count: int) -> bool:
        with TopicReader({"bootstrap.servers": world.plain.bootstrap}, SECONDS) as reader:
            known = place[0] in reader.topics()
            return known and len(list(reader.read({place: reader.bounds(place)}))) == count

    def look_at(thread: SourceCommits) -> None:
        check_output(thread.trouble)

    def work() -> None:
        for number in (1, 2):
            log.append([replace(make_cut(world.name, 10 * number, 1), previous_lsn=10 * number - 10)])
            thread = SourceCommits(settings)
            thread.start()
            try:
                is_done, check = partial(has_records, number), partial(look_at, thread)
                if not wait_until(is_done, world.patience, check=check):
                    raise WorkRefusedError("no record was written")
            finally:
                thread.close()

    cuts = Right(Resource.TOPIC, cut_log_topic(world.name), Operation.READ)
    return Trial([cuts, *source_commit_rights(world.name)], work)


def member(world: World) -> Trial:
    topic = publish(world)
    rights = consumer_rights([topic, commit_topic(topic)], world.name)
    return Trial(rights, partial(read, world.kafka, OutputTopics(topic), world.name, seconds=world.patience))


def member_by_unit(world: World) -> Trial:
    changes = change_topics(world)
    topics, share = [*changes.data_topics, changes.log], ByUnit(lambda record: record.key(), lanes=2)
    rights = consumer_rights(topics, world.name, is_by_unit=True)
    return Trial(rights, partial(read, world.kafka, changes, world.name, share, seconds=world.patience))


def change_topics(world: World) -> ChangeTopics:
    """Returns the topics of a source that has a transaction and a cut."""
    writer = ChangeWriter(
        KafkaTopics(world.plain.bootstrap, f"{world.name}-connector"), world.name, {TABLE: 1}
    )
    writer.transaction([(TABLE, 1, {"id": 1})])
    writer.cut()
    return ChangeTopics(source=world.name, tables=(TABLE,))


def member_that_follows(world: World) -> Trial:
    """Reads a revision to the commit of a switch, and then the other one."""
    base, group = two_revisions(world), f"{world.name}-readers"
    topics = {1: f"{base}.one", 2: f"{base}_v2.one"}

    def work() -> None:
        TopicReaders(world.plain, base).switch(base, 1, {"one": topics[1]})
        read(world.kafka, PipelineViews(base, "one"), group, seconds=world.patience)
        TopicReaders(world.plain, base).switch(f"{base}.v2", 2, {"one": topics[2]})
        read(world.kafka, PipelineViews(base, "one"), group, seconds=world.patience)

    rights = consumer_rights([*topics.values(), *map(commit_topic, topics.values())], group)
    return Trial([*rights, *switched_rights(base)], work)


def two_revisions(world: World) -> str:
    """Publishes one commit of a revision, and two of the next one; returns the name without them."""
    with ExitStack() as opened:
        base, first, second = published_revisions("kafka", Servers(world.plain), world.folder, opened)
        first.publish({1: 1})
        second.publish({1: 1})
        second.publish({1: 2})
    return base


def reader(world: World) -> Trial:
    topic = publish(world)

    def work() -> None:
        with closing(TopicOutput(world.kafka, world.name)) as output:
            for at in (None, CommitPosition(1, 100)):
                read_views([output], at=at)

    return Trial(reader_rights([topic], [commit_topic(topic)], [world.name]), work)


class PublishedView:
    """A view of a compacted topic, whose pipeline holds states for readers with leases."""

    def __init__(self, world: World) -> None:
        self.topic = f"{world.name}.one"
        servers = Servers(world.plain)
        pipeline = publishing_pipeline(
            world.folder / world.name,
            view="one",
            output=f'topic = "{self.topic}"',
            servers=servers,
            emit="latest",
        )
        self._made = world.running.enter_context(pipeline)
        self._world = world
        self.publish(1)

    def publish(self, value: int) -> None:
        self._made.publish({1: value})

    @contextmanager
    def holding(self) -> Iterator[None]:
        holder = LeaseHolder(
            LeaseLog(self._world.plain),
            pipeline=self._world.name,
            refusal="",
            longest=timedelta(days=1),
            sink=self._made.sink,
            clock=SystemClock(),
        )
        is_over = threading.Event()

        def hold() -> None:
            while not is_over.wait(0.05):
                holder.hold()

        thread = threading.Thread(target=hold)
        holder.begin()
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            holder.close()


def lease_on(world: World, log: LeaseLog, output: TopicOutput) -> Lease:
    patience = timedelta(seconds=world.patience)
    return take_lease(log, [output], duration=timedelta(hours=1), holder="t", timeout=patience)


def reader_with_a_lease(world: World) -> Trial:
    """Takes a lease on batches of a compacted topic, whose pipeline continues, and reads at its commit."""
    world.forget(LEASES_TOPIC)
    pipeline = PublishedView(world)

    def work() -> None:
        with closing(TopicOutput(world.kafka, world.name)) as output:
            with pipeline.holding(), open_leases(world.kafka) as log:
                lease = take_lease(
                    log,
                    [output],
                    duration=timedelta(hours=1),
                    holder="t",
                    timeout=timedelta(seconds=world.patience),
                )
            pipeline.publish(2)
            read_views([output], at=lease)
            with open_views([output], at=lease) as database:
                assert database.sql("SELECT value FROM one").fetchall() == [(1,)]

    topics = [pipeline.topic]
    rights = reader_rights(
        topics, map(commit_topic, topics), [world.name], reads_earlier=True, takes_leases=True
    )
    return Trial(rights, work)


def reader_of_what_was_switched_to(world: World) -> Trial:
    base = two_revisions(world)
    topic, pipeline = f"{base}_v2.one", f"{base}.v2"
    TopicReaders(world.plain, pipeline).switch(pipeline, 2, {"one": topic})

    def work() -> None:
        with closing(TopicReaders(world.kafka, base).open_current()) as output:
            read_views([output], at=CommitPosition(1, 100))

    rights = reader_rights([topic], [commit_topic(topic)], [pipeline])
    return Trial([*rights, *switched_rights(base)], work)


def producer(world: World) -> Trial:
    return Trial(producer_rights(world.name), partial(write, world.kafka, world.name))


def producer_of_a_group(world: World) -> Trial:
    """Writes for each transaction that it reads one of its own."""
    changes, group, own = change_topics(world), f"{world.name}-group", f"{world.name}-own"

    def work() -> None:
        settings = ConsumerSettings(stores_positions=False)
        with (
            TransactionalProducer(world.kafka, own) as written,
            TransactionalConsumer(world.kafka, changes, group=group, settings=settings) as consumer,
        ):
            written.make_table(TABLE)
            found = consumer.poll(timedelta(seconds=world.patience))
            if found is None:
                raise WorkRefusedError("nothing was read")
            with written.transaction(found.commit, consumer=consumer) as transaction:
                transaction.insert(TABLE, {"id": 1}, {"total": 120})
        with TransactionalProducer(world.kafka, own):
            pass  # it has read where the first one ended

    rights = {*consumer_rights([*changes.data_topics, changes.log], group), *producer_rights(own, group)}
    return Trial(sorted(rights), work)


def pipeline(world: World) -> Trial:
    """Publishes, and holds a state for a reader; what its sink writes is tried below."""
    look_after(world, LOOKED_AT)
    folder, topic = world.folder / world.name, f"{world.name}.docs"
    shutil.copytree(PIPELINE, folder)
    head = f'name = "{world.name}"\nsource = "{LOOKED_AT}"\nemit = "latest"\n'
    (folder / "pipeline.toml").write_text(f'{head}[output]\ntopic = "{topic}"\n')
    (world.folder / "slackwater.toml").write_text(stated_connector(LOOKED_AT))
    for shared in (PIPELINES_TOPIC, LEASES_TOPIC):
        world.forget(shared)
    seen = world.running.enter_context(closing(TopicOutput(world.plain, world.name)))

    def is_visible() -> bool:
        with suppress(ConfigError, UnavailableError):
            return seen.newest() is not None
        return False

    def work() -> None:
        run = ("run", str(folder), "--checkpoint", str(world.folder / f"checkpoint-{world.name}"))
        with world.program(*run) as program, open_leases(world.plain) as log:
            run_until(world, program, is_visible)
            log.remove([lease_on(world, log, seen)])
            check_output(program.output())

    def is_tried(right: Right) -> bool:
        is_alter = right.operation is Operation.ALTER_CONFIGS
        return is_alter or (right.resource is Resource.TOPIC and world.name not in right.name)

    return Trial(rights_of_pipeline(load_pipeline(folder)), work, is_tried)


def sink(world: World, *, is_source: bool = False) -> Trial:
    """Publishes every commit, also after others have written and after a restart.

    The topic then takes less at once than a producer would send by itself.
    """
    topic = f"{world.name}.public.one"
    format_ = 'format = "debezium"' if is_source else 'commit_format = "avro"'
    registry = world.running.enter_context(RegistryServer())
    documents = {number: random.Random(number).randbytes(500).hex() for number in range(200)}
    outputs = {topic: world.name if is_source else ""}
    in_avro = () if is_source else (topic,)
    rights = pipeline_rights(
        world.name, SourceTopics(SOURCE), [], outputs, is_latest=False, avro_commits_of=in_avro
    )
    written = sorted({each.name for each in rights if each.operation is Operation.CREATE} - {PIPELINES_TOPIC})

    def work() -> None:
        lsn = 0
        for start in ("first", "second"):
            folder = world.folder / start / world.name
            servers = Servers(world.kafka, registry=RegistrySettings(url=registry.url))
            output = f'topic = "{topic}"\npartitions = 1\n{format_}'
            with publishing_pipeline(folder, view="one", output=output, servers=servers) as made:
                made.lsn = lsn
                made.publish(documents if lsn else {1: 1}, is_snapshot=not lsn)
                write_in_vain(world, written)
                lsn = made.publish({2: lsn})
            limit_size(world, topic)

    return Trial(rights, work, lambda right: right.resource is not Resource.TOPIC or right.name in written)


def limit_size(world: World, topic: str) -> None:
    entry = ConfigEntry("max.message.bytes", "20000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = world.servers.admin  # which ends its requests when it is gone
    admin.incremental_alter_configs([resource])[resource].result(SECONDS)


def write_in_vain(world: World, topics: Sequence[str]) -> None:
    """Leaves a gap in topics: a transaction that somebody has aborted."""
    writer = Producer({"bootstrap.servers": world.plain.bootstrap, "transactional.id": f"{world.name}-vain"})
    writer.init_transactions(SECONDS)
    writer.begin_transaction()
    for topic in topics:
        writer.produce(topic, b"{}", b"k")
    writer.flush(SECONDS)
    writer.abort_transaction(SECONDS)


def viewer(world: World) -> Trial:
    source = LOOKED_AT
    look_after(world, source)

    record_run(world, LOOKED_AT)

    def work() -> None:
        shown = json.loads(command(world, "topology", "--source", source, "--json"))
        if not shown["sources"][0]["cut"] or not shown["pipelines"]:
            raise WorkRefusedError("no cut is shown, or no pipeline")
        for asked in ("status", "doctor"):
            command(world, asked, "--source", source)
        if LOOKED_AT not in command(world, "lease", "list"):
            raise WorkRefusedError("no lease is shown")

    return Trial(viewer_rights(SourceTopics(source), None), work)


def look_after(world: World, source: str) -> None:
    """Has a sidecar for a source from now on, unless there is one."""
    if cut_log_topic(source) in world.servers.admin.list_topics(timeout=60).topics:
        return
    TopicFiller(world.plain.bootstrap, OrdersWorkload(20, 1), prefix=source, partitions=1).fill(100)
    redis = f"redis://127.0.0.1:{world.servers.redis.port}"
    where = ("--bootstrap", world.plain.bootstrap, "--redis-url", redis)
    command = slackwater_command("sidecar", "--source", source, *where)
    program = Program(source, lambda: command, world.folder)
    program.start(folder=world.folder)
    world.running.callback(program.stop)
    run_until(world, program, lambda: has_cut(world, source))


def run_until(world: World, program: Program, is_done: Callable[[], bool]) -> None:
    """Waits until a program has done its work; refused is what complains, or takes too long."""

    def check() -> None:
        check_output(program.output())
        program.check()

    if not wait_until(is_done, world.patience, check=check):
        raise WorkRefusedError(program.last_words())
    check_output(program.output())


def record_run(world: World, name: str) -> None:
    """Tells the cluster of a run of a pipeline, which has ended, and of a lease; both have this name."""
    with closing(PipelineLog(world.plain)) as pipelines:
        pipelines.ensure()
        run = replace(REGISTRATION, pipeline=name, base_name=name, source=name)
        pipelines.register(run)
        end = RunEnd(ended_ms=0, failure="")
        pipelines.report(
            PipelineReport(pipeline=name, run=run.run, batch_id=-1, timeline=1, commit_lsn=0, end=end)
        )
    lease = Lease(
        id=name,
        source=name,
        timeline=1,
        commit_lsn=100,
        pipelines=(),
        holder="t",
        taken_ms=0,
        expires_ms=2**42,
    )
    with open_leases(world.plain) as leases:
        leases.ensure()
        leases.write(lease)


def has_cut(world: World, source: str) -> bool:
    if cut_log_topic(source) not in world.servers.admin.list_topics(timeout=60).topics:
        return False
    with closing(CutLog(source, KafkaSettings(world.plain.bootstrap))) as log:
        return log.newest() is not None


def operator_who_switches(world: World) -> Trial:
    """Switches readers of compacted topics to another revision and back, each time at an earlier commit."""
    opened = world.running.enter_context(ExitStack())
    base, first, second = published_revisions(
        "kafka", Servers(world.plain), world.folder, opened, emit="latest"
    )
    topics = {1: f"{base}.one", 2: f"{base}_v2.one"}
    for made, commits in ((first, 1), (second, 2)):
        for number in range(commits):
            made.publish({1: number})

    def switch(pipeline: str, revision: int) -> None:
        patience = timedelta(seconds=min(world.patience, 5))
        TopicReaders(world.kafka, pipeline).switch(
            pipeline, revision, {"one": topics[revision]}, timeout=patience
        )

    def work() -> None:
        switch(base, 1)
        switch(f"{base}.v2", 2)
        for number in (2, 3):
            first.publish({1: number})
        switch(base, 1)

    return Trial(switching_rights(base, [base, f"{base}.v2"], topics.values()), work)


def operator(world: World) -> Trial:
    """Decides; what operators look at is tried for viewers."""
    with closing(CutLog(world.name, KafkaSettings(world.plain.bootstrap))) as log:
        log.ensure_topic()
    writer = Producer({"bootstrap.servers": world.plain.bootstrap, "enable.idempotence": True})
    writer.produce(cut_log_topic(world.name), DAMAGED)
    assert writer.flush(SECONDS) == 0
    record_run(world, world.name)

    def work() -> None:
        command(world, "source", "pass-record", "--source", world.name, "--offset", "0", "--yes")
        command(world, "pipeline", "delete", world.name)
        command(world, "lease", "end", world.name)

    rights = operator_rights(SourceTopics(world.name), None)
    return Trial(rights, work, lambda right: right.operation is Operation.WRITE)


TRIALS: Mapping[str, Callable[[World], Trial]] = {
    "sidecar": sidecar,
    "sidecar of some tables": lambda world: sidecar(world, "shop.orders", "shop.lines"),
    "sidecar with commit records": sidecar_with_commit_records,
    "member": member,
    "member by unit": member_by_unit,
    "member that follows": member_that_follows,
    "reader": reader,
    "reader with a lease": reader_with_a_lease,
    "reader of what was switched to": reader_of_what_was_switched_to,
    "producer": producer,
    "producer of a group": producer_of_a_group,
    "pipeline": pipeline,
    "sink": sink,
    "sink of a source": partial(sink, is_source=True),
    "viewer": viewer,
    "operator": operator,
    "operator who switches": operator_who_switches,
}


QUICK = ("sidecar with commit records", "member", "producer", "operator")


@pytest.mark.full
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in TRIALS]
)
def test_no_line_of_a_list_can_be_left_out(
    servers: SecuredServers, tmp_path: Path, running: ExitStack, name: str
) -> None:
    make = TRIALS[name]

    def trial(patience: float) -> Trial:
        return make(World(servers, tmp_path, running, TRIED, patience))

    assert superfluous(trial, servers, TRIED) == []
