"""Outputs that are a source, over a real broker: events, BEGIN and END become visible once, and at once."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from slackwater.cdc.envelope import End, decode_change, decode_transaction
from slackwater.engine.payloads import Document, DocumentBatch, pack_change
from slackwater.outputs.contract import Emit, OutputRefusedError, OutputTable, SinkStep
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic
from slackwater.outputs.kafka.sink import KafkaSink
from slackwater.protocol import StateError
from slackwater.sql.plan import OutputColumn

pytestmark = pytest.mark.integration

MakeBatch = Callable[..., DocumentBatch]
Topics = Any  # of conftest.py
QUERY = "0f5c2f6e-query"
SECONDS = 300.0


class CrashError(Exception):
    pass


@pytest.fixture
def settings(make_settings: Callable[..., KafkaSinkSettings]) -> KafkaSinkSettings:
    plain = make_settings(Emit.TRANSACTIONS)
    table = OutputTable(
        name="public.orders",
        columns=(OutputColumn("id", "VARCHAR"), OutputColumn("day", "DATE")),
        key=("id",),
    )
    output = OutputTopic(f"{plain.pipeline}.public.orders", 3, view="orders", table=table)
    return replace(plain, outputs=(output,), prefix=plain.pipeline)


def changes(batch_id: int, day: str = "2026-11-20") -> list[Document]:
    """One for each of a batch's ten commits."""
    return [
        (
            lsn,
            b'{"id":"k%d"}' % (lsn % 7),
            pack_change(None, b'{"id":"k%d","day":"%b"}' % (lsn % 7, day.encode())),
        )
        for lsn in range(10 * batch_id + 1, 10 * batch_id + 11)
    ]


def run(settings: KafkaSinkSettings, batches: list[DocumentBatch], **options: Any) -> None:
    sink = KafkaSink(settings, **options)
    sink.open()
    try:
        for batch in batches:
            sink.write(QUERY, batch)
    finally:
        sink.close()


def seen(settings: KafkaSinkSettings, topics: Topics) -> tuple[list[int], list[int]]:
    """Commit LSNs of the events, and of the transactions that ENDs count one event in."""
    events = [decode_change(record.value) for record in topics.documents(settings)]
    told = [decode_transaction(record.value) for record in topics.records(f"{settings.prefix}.transaction")]
    counted = [r.commit_lsn for r in told if isinstance(r, End) and r.counts == {"public.orders": 1}]
    return sorted(event.lsn or 0 for event in events), counted


STEPS = list(SinkStep)
LATE_STEPS = [pytest.param(step, marks=() if step in STEPS[-4:] else pytest.mark.slow) for step in STEPS]
"""Those from which everything is in Kafka are in CI; `make soak` has the others, too."""


@pytest.mark.full
@pytest.mark.parametrize("step", LATE_STEPS)
def test_a_crash_at_any_step_neither_loses_nor_repeats_an_event_or_an_end(
    settings: KafkaSinkSettings, topics: Topics, make_batch: MakeBatch, step: SinkStep
) -> None:
    batches = [make_batch(n, changes(n)) for n in range(2)]
    at_crash: list[tuple[list[int], list[int]]] = []

    def crash(at: SinkStep, batch_id: int) -> None:
        if (at, batch_id) == (step, 1):
            at_crash.append(seen(settings, topics))
            raise CrashError

    with pytest.raises(CrashError):
        run(settings, batches, probe=crash)
    run(settings, batches[1:])
    first, both = list(range(1, 11)), list(range(1, 21))
    assert at_crash == [(both, both) if step is SinkStep.COMMITTED else (first, first)]
    assert seen(settings, topics) == (both, both)


def test_records_of_others_in_the_transaction_topic_are_found(
    settings: KafkaSinkSettings, topics: Topics, make_batch: MakeBatch
) -> None:
    run(settings, [make_batch(0, changes(0))])
    producer = Producer(settings.kafka.client_config)
    producer.produce(f"{settings.prefix}.transaction", b"{}")
    assert producer.flush(SECONDS) == 0
    with pytest.raises(StateError, match=r"transaction': .* a record of another writer at offset 21"):
        run(settings, [make_batch(1, changes(1))])


def test_a_transaction_topic_that_was_deleted_is_noticed(
    settings: KafkaSinkSettings, make_batch: MakeBatch
) -> None:
    run(settings, [make_batch(0, changes(0))])
    admin = AdminClient({**settings.kafka.client_config})
    admin.delete_topics([f"{settings.prefix}.transaction"])[f"{settings.prefix}.transaction"].result(SECONDS)
    with pytest.raises(StateError, match=r"transaction': .* it was deleted"):
        run(settings, [make_batch(1, changes(1))])


def test_a_value_that_has_no_form_stops_the_run_before_anything_is_visible(
    settings: KafkaSinkSettings, topics: Topics, make_batch: MakeBatch
) -> None:
    with pytest.raises(OutputRefusedError, match=r'key \{"id":"k1"\}, commit LSN 0/1: column .day.'):
        run(settings, [make_batch(0, changes(0, "0044-03-15 (BC)"))])
    assert seen(settings, topics) == ([], [])


def test_commit_records_say_where_the_events_of_a_commit_are(
    settings: KafkaSinkSettings, topics: Topics, make_batch: MakeBatch
) -> None:
    run(settings, [make_batch(0, changes(0))])
    events = {(r.partition, r.offset): json.loads(r.value) for r in topics.documents(settings)}
    for record in topics.commits(settings):
        ((partition, found),) = record.offsets[settings.outputs[0].name].items()
        assert events[partition, found.first_offset]["source"]["lsn"] == record.commit_lsn


@pytest.mark.full
@pytest.mark.parametrize("emit", list(Emit))
def test_documents_may_be_cloudevents(
    make_settings: Callable[..., KafkaSinkSettings], topics: Topics, make_batch: MakeBatch, emit: Emit
) -> None:
    settings = make_settings(emit, partitions=2)
    output = replace(settings.outputs[0], cloudevents=True, schema="orders:1")
    settings = replace(settings, outputs=(output,))
    documents: list[Document] = [(5, b'{"id":1}', b"{}"), (5, b'{"id":2}', None), (6, b'{"id":3}', b"{}")]
    run(settings, [make_batch(0, documents)])
    found = {record.key: record.headers for record in topics.documents(settings)}
    is_latest = emit is Emit.LATEST
    places = ("0A-1", "0A-2", "0A-3") if is_latest else ("05-1", "05-2", "06-1")
    assert {headers["ce_id"].decode() for headers in found.values()} == {
        f"00000001-00000000000000{place}" for place in places
    }
    first = {name: value for name, value in found[b'{"id":1}'].items() if name != "ce_id"}
    assert {name: value.decode() for name, value in first.items() if name.startswith(("ce_", "content"))} == {
        "ce_specversion": "1.0",
        "ce_source": f"/slackwater/{settings.pipeline}/{output.name}",
        "ce_type": "slackwater.orders:1",
        "ce_time": f"1970-01-01T00:00:{'10' if is_latest else '05'}.000Z",
        "ce_slackwaterpipeline": settings.pipeline,
        "ce_slackwatercommitlsn": first["slackwater-commit-lsn"].decode(),
        **({} if is_latest else {"ce_slackwaterxid": "505"}),
        "content-type": "application/json",
    }


def test_documents_are_no_cloudevents_unless_asked_for(
    make_settings: Callable[..., KafkaSinkSettings], topics: Topics, make_batch: MakeBatch
) -> None:
    settings = make_settings()
    run(settings, [make_batch(0)])
    names = {name for record in topics.documents(settings) for name in record.headers}
    assert names == {"slackwater-commit-lsn", "slackwater-pipeline"}
