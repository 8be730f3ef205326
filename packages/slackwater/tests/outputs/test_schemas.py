"""Outputs with schemas over a real broker: what readers with a registry see, and a registry that is away."""

import json
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from io import BytesIO
from typing import Any

import fastavro
import pytest

from slackwater.engine.payloads import Document, DocumentBatch, with_documents
from slackwater.kafka.registry import SchemaRegistry, SubjectStrategy, over_http
from slackwater.outputs.contract import Emit, Format, KeyFormat, OutputRefusedError
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputForm, output_form
from slackwater.outputs.kafka.sink import KafkaSink
from slackwater.outputs.sink import Waiting
from slackwater.protocol import (
    ConfigError,
    InputError,
    RegistrySettings,
    SchemaLanguage,
    UnavailableError,
    commit_schema,
)
from slackwater.sql.plan import OutputColumn, PublishedView
from slackwater_lab.fakes.registry import RegistryServer
from slackwater_lab.servers.registry import RegistryNode

pytestmark = pytest.mark.integration

MakeBatch = Callable[..., DocumentBatch]
Topics = Any  # of conftest.py
MakeSettings = Callable[..., KafkaSinkSettings]
QUERY = "0f5c2f6e-query"
Registry = RegistryServer | RegistryNode
OF_BOTH = pytest.mark.parametrize(
    "registry", ["in memory", pytest.param("apicurio", marks=pytest.mark.slow)], indirect=True
)
"""Registries."""
COLUMNS = (OutputColumn("id", "BIGINT"), OutputColumn("total", "DECIMAL(10,2)"))
VIEW = PublishedView("orders", "", ("id",), COLUMNS, "", ())
DOCUMENTS: list[Document] = [
    (1, b'{"id":1}', b'{"id":1,"total":"3.50"}'),
    (2, b'{"id":2}', b'{"id":2,"total":null}'),
    (3, b'{"id":1}', None),
]


@pytest.fixture
def server(registry: RegistryServer) -> RegistryServer:
    return registry


def form(value: Format, keys: KeyFormat = KeyFormat.JSON, view: PublishedView = VIEW) -> OutputForm:
    found = output_form(view, value, keys)
    assert found is not None
    return found


def with_form(settings: KafkaSinkSettings, of: OutputForm, server: Registry) -> KafkaSinkSettings:
    outputs = tuple(replace(output, form=of, view="orders") for output in settings.outputs)
    return replace(settings, outputs=outputs, registry=RegistrySettings(url=server.url))


def handed_over(batch: DocumentBatch, *forms: OutputForm) -> DocumentBatch:
    """The batch as workers hand it over, with the form of each view."""
    payloads = dict(batch.payloads)
    for view, encode in enumerate(each.encoder() for each in forms):
        if encode is not None:
            payloads[view] = tuple(with_documents(each, encode) for each in payloads[view])
    return replace(batch, payloads=payloads)


def decoded(data: bytes | None, server: Registry) -> Any:
    """What a reader that has the registry sees."""
    if data is None:
        return None
    assert data[0] == 0
    schema_id = int.from_bytes(data[1:5], "big")
    settings = RegistrySettings(url=server.url)
    answer = json.loads(over_http(settings, "GET", server.url, f"/schemas/ids/{schema_id}", None)[1])
    if answer.get("schemaType") == "JSON":
        return json.loads(data[5:])
    schema = fastavro.parse_schema(json.loads(SchemaRegistry(settings).schema(schema_id)))
    value: Any = fastavro.schemaless_reader(BytesIO(data[5:]), schema, None)
    return value


def written(settings: KafkaSinkSettings, batches: list[DocumentBatch], **options: Any) -> None:
    sink = KafkaSink(settings, **options)
    sink.open()
    try:
        for batch in batches:
            sink.write(QUERY, batch)
    finally:
        sink.close()


@OF_BOTH
@pytest.mark.full
@pytest.mark.parametrize(
    ("value", "total"), [(Format.AVRO, lambda d: str(d["total"])), (Format.JSON_SCHEMA, lambda d: d["total"])]
)
def test_records_carry_the_ids_of_their_schemas(
    make_settings: MakeSettings,
    make_batch: MakeBatch,
    topics: Topics,
    server: RegistryServer,
    value: Format,
    total: Callable[[Any], str],
) -> None:
    of = form(value, KeyFormat(str(value)))
    settings = with_form(make_settings(Emit.TRANSACTIONS, 1), of, server)

    written(settings, [handed_over(make_batch(0, DOCUMENTS), of)])

    records = topics.documents(settings)
    assert [decoded(record.key, server) for record in records] == [{"id": 1}, {"id": 2}, {"id": 1}]
    values = [decoded(record.value, server) for record in records]
    assert total(values[0]) == "3.50"
    assert values[1:] == [{"id": 2, "total": None}, None]
    topic = settings.outputs[0].name
    assert list(server.subjects) == [f"{topic}-key", f"{topic}-value"]
    assert next(record.schemas for record in topics.commits(settings)) == {topic: ("orders",)}


@OF_BOTH
def test_keys_are_texts_where_other_systems_expect_texts(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics, server: RegistryServer
) -> None:
    of = form(Format.AVRO, KeyFormat.STRING)
    settings = with_form(make_settings(Emit.TRANSACTIONS, 1), of, server)

    written(settings, [handed_over(make_batch(0, DOCUMENTS), of)])

    assert [record.key for record in topics.documents(settings)] == [b"1", b"2", b"1"]
    assert list(server.subjects) == [f"{settings.outputs[0].name}-value"]


def test_a_running_pipeline_does_not_need_the_registry(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics, server: RegistryServer
) -> None:
    of = form(Format.AVRO)
    settings = with_form(make_settings(Emit.TRANSACTIONS, 1), of, server)
    sink = KafkaSink(settings)
    sink.open()
    server.failure = 503
    asked = len(server.requests)

    for number in range(2):
        documents = [(lsn + 10 * number, key, document) for lsn, key, document in DOCUMENTS]
        sink.write(QUERY, handed_over(make_batch(number, documents), of))
    sink.close()

    assert len(topics.documents(settings)) == 6
    assert len(server.requests) == asked


def test_a_registry_that_is_away_at_the_start_is_waited_for(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics, server: RegistryServer
) -> None:
    server.failure = 503
    steps: list[str] = []

    def step(text: str) -> None:
        steps.append(text)
        if len(steps) == 3:
            server.failure = None

    of = form(Format.AVRO)
    settings = with_form(make_settings(Emit.TRANSACTIONS, 1), of, server)
    written(settings, [handed_over(make_batch(0, DOCUMENTS), of)], waiting=Waiting(on_step=step))

    assert len(topics.documents(settings)) == 3
    assert server.url in steps[0]
    assert "HTTP 503" in steps[0]


def test_a_registry_that_stays_away_ends_the_run_before_anything_is_touched(
    make_settings: MakeSettings, server: RegistryServer
) -> None:
    server.failure = 503
    settings = with_form(make_settings(), form(Format.AVRO), server)

    with pytest.raises(UnavailableError, match=r"HTTP 503.*nothing is lost") as caught:
        KafkaSink(replace(settings, patience=timedelta(0))).open()
    assert f"{settings.outputs[0].name}-value" in str(caught.value)


def test_a_run_that_is_to_stop_waits_no_longer(make_settings: MakeSettings, server: RegistryServer) -> None:
    server.failure = 503
    stop = threading.Event()
    settings = with_form(make_settings(), form(Format.AVRO), server)

    with pytest.raises(UnavailableError, match="was asked to stop"):
        KafkaSink(settings, waiting=Waiting(stop, lambda _: stop.set())).open()


def test_an_incompatible_schema_says_subject_difference_and_what_to_do(
    make_settings: MakeSettings, make_batch: MakeBatch, topics: Topics, server: RegistryServer
) -> None:
    of = form(Format.AVRO)
    settings = with_form(make_settings(Emit.TRANSACTIONS, 1), of, server)
    written(settings, [handed_over(make_batch(0, DOCUMENTS), of)])
    subject = f"{settings.outputs[0].name}-value"
    server.incompatible[subject] = "type of field total: bytes is not int"
    changed = replace(VIEW, outputs=(COLUMNS[0], OutputColumn("total", "INTEGER")))

    with pytest.raises(OutputRefusedError) as caught:
        KafkaSink(with_form(settings, form(Format.AVRO, view=changed), server)).open()
    for text in ("view 'orders'", subject, "bytes is not int", "write to another topic"):
        assert text in str(caught.value)
    assert len(topics.documents(settings)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("registry", ["apicurio"], indirect=True)
def test_a_registry_that_compares_schemas_says_what_differs_before_a_run_and_in_it(
    make_settings: MakeSettings,
    make_batch: MakeBatch,
    topics: Topics,
    registry: RegistryNode,
) -> None:
    of = form(Format.AVRO)
    settings = with_form(make_settings(Emit.TRANSACTIONS, 1), of, registry)
    written(settings, [handed_over(make_batch(0, DOCUMENTS), of)])
    subject = f"{settings.outputs[0].name}-value"
    registry.compare_versions(subject)
    written(settings, [])
    changed = form(Format.AVRO, view=replace(VIEW, outputs=(COLUMNS[0], OutputColumn("total", "INTEGER"))))
    refused(
        with_form(settings, changed, registry),
        OutputRefusedError,
        rf"{subject}.*lacking writer type: BYTES at /fields/1",
    )
    assert len(topics.documents(settings)) == 3


def test_missing_rights_end_the_run_at_once(make_settings: MakeSettings, server: RegistryServer) -> None:
    server.failure = 403

    with pytest.raises(ConfigError, match=r"HTTP 403.*user and password"):
        KafkaSink(with_form(make_settings(), form(Format.AVRO), server)).open()


def test_without_a_registry_the_setting_is_named(make_settings: MakeSettings, server: RegistryServer) -> None:
    settings = replace(with_form(make_settings(), form(Format.AVRO), server), registry=None)

    with pytest.raises(ConfigError, match=r"registry\.url"):
        KafkaSink(settings).open()


def test_a_value_without_a_form_is_named_with_view_and_key() -> None:
    encode = form(Format.AVRO, view=replace(VIEW, outputs=(OutputColumn("id", "HUGEINT"),))).encoder()
    assert encode is not None

    with pytest.raises(InputError, match=r"view 'orders', key \{\"id\":7\}: .*38"):
        encode((1, b'{"id":7}', b'{"id":%d}' % 10**38))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b'{"id":"a\\"\\u00e4"}', 'a"ä'),
        (b'{"id":17}', "17"),
        (b'{"id":[1,"a"]}', '[1,"a"]'),
        (b'{"id":""}', ""),
    ],
)
def test_a_key_as_text_is_its_only_value(key: bytes, expected: str) -> None:
    encode = form(Format.JSON, KeyFormat.STRING).encoder()
    assert encode is not None

    assert encode((1, key, b"{}")) == (1, expected.encode(), b"{}")


def test_no_text_stands_for_a_key_that_is_null() -> None:
    encode = form(Format.JSON, KeyFormat.STRING).encoder()
    assert encode is not None

    with pytest.raises(InputError, match="the key is NULL"):
        encode((1, b'{"id":null}', b"{}"))


@pytest.mark.parametrize(
    ("view", "keys", "problem"),
    [
        (replace(VIEW, key=()), KeyFormat.STRING, "needs a key of one column, but it has 0"),
        (replace(VIEW, key=("id", "total")), KeyFormat.STRING, "it has 2"),
        (replace(VIEW, key=("other",)), KeyFormat.AVRO, "'other', which it does not select"),
        (replace(VIEW, key=("other",)), KeyFormat.JSON_SCHEMA, "'other', which it does not select"),
        (replace(VIEW, outputs=(*COLUMNS, OutputColumn("a b", "INTEGER"), OutputColumn("a_b", "INTEGER"))),
         KeyFormat.JSON, "both named 'a_b'"),
    ],
)  # fmt: skip
def test_forms_that_a_view_cannot_have_are_refused(
    view: PublishedView, keys: KeyFormat, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        output_form(view, Format.AVRO, keys)


def test_plain_documents_with_json_keys_need_no_form() -> None:
    assert output_form(VIEW, Format.JSON, KeyFormat.JSON) is None
    assert output_form(replace(VIEW, key=()), Format.DEBEZIUM, KeyFormat.JSON) is None


InAvro = Callable[[KafkaSinkSettings], KafkaSinkSettings]
LINES = PublishedView(
    "lines",
    "",
    ("line", "id"),
    (*COLUMNS[:1], OutputColumn("line", "BIGINT"), OutputColumn("note", "VARCHAR")),
    "",
    (),
)


@OF_BOTH
@pytest.mark.full
@pytest.mark.parametrize(
    ("strategy", "value", "subjects"),
    [
        (SubjectStrategy.RECORD, Format.AVRO, ["slackwater.lines", "slackwater.orders"]),
        (
            SubjectStrategy.TOPIC_RECORD,
            Format.AVRO,
            ["{topic}-slackwater.lines", "{topic}-slackwater.orders"],
        ),
        (SubjectStrategy.RECORD, Format.JSON_SCHEMA, ["lines", "orders"]),
    ],
)
def test_views_of_one_topic_are_decoded_each_by_its_own_schema(
    make_settings: MakeSettings,
    make_batch: MakeBatch,
    topics: Topics,
    server: RegistryServer,
    in_one_topic: InAvro,
    strategy: SubjectStrategy,
    value: Format,
    subjects: list[str],
) -> None:
    forms = {view.name: form(value, view=view) for view in (VIEW, LINES)}
    settings = in_one_topic(with_form(make_settings(Emit.TRANSACTIONS, 2), forms["orders"], server))
    outputs = tuple(
        replace(output, view=view, form=forms[view], subject_strategy=strategy)
        for output, view in zip(settings.outputs, forms, strict=True)
    )
    settings = replace(settings, outputs=outputs)
    lines: list[Document] = [
        (1, b'{"line":7,"id":1}', b'{"id":1,"line":7,"note":"a"}'),
        (2, b'{"line":7,"id":1}', None),
        (2, b'{"line":8,"id":2}', b'{"id":2,"line":8,"note":null}'),
    ]
    written(settings, [handed_over(make_batch(0, DOCUMENTS, others={1: lines}), *forms.values())])

    topic = settings.outputs[0].name
    assert sorted(server.subjects) == [each.format(topic=topic) for each in subjects]
    found: dict[str, list[Any]] = {view: [] for view in forms}
    for record in topics.documents(settings):
        document = decoded(record.value, server)
        if document is not None and "total" in document and document["total"] is not None:
            document["total"] = str(document["total"])
        lsn, view = int(record.headers["slackwater-commit-lsn"]), record.headers["slackwater-view"].decode()
        found[view].append((lsn, json.loads(record.key), document))
    for view, documents in (("orders", DOCUMENTS), ("lines", lines)):
        expected = [(lsn, json.loads(key), value and json.loads(value)) for lsn, key, value in documents]
        assert sorted(found[view], key=str) == sorted(expected, key=str), view


@OF_BOTH
def test_commit_records_in_avro_carry_the_id_of_the_printed_schema(
    make_settings: MakeSettings,
    make_batch: MakeBatch,
    topics: Topics,
    server: RegistryServer,
    in_avro: InAvro,
) -> None:
    settings = in_avro(make_settings(Emit.TRANSACTIONS, 1))
    written(settings, [make_batch(0)])
    topic = f"{settings.outputs[0].name}.commits-avro"
    assert list(server.subjects) == [f"{topic}-value"]
    records = topics.records(topic)
    known = SchemaRegistry(RegistrySettings(url=server.url)).schema
    assert {known(int.from_bytes((each.value or b"")[1:5], "big")) for each in records} == {
        commit_schema(SchemaLanguage.AVRO)
    }
    assert [decoded(each.value, server) for each in records] == topics.avro_commits(settings)
    assert [each.headers for each in records] == [
        each.headers for each in topics.records(settings.outputs[0].commits)
    ]


def refused(settings: KafkaSinkSettings, kind: type[Exception], told: str) -> None:
    """By the check before a run and by the run."""
    impatient = replace(settings, patience=timedelta(0))
    for begin in (lambda sink: sink.check(None), KafkaSink.open):
        with closing(KafkaSink(impatient)) as sink, pytest.raises(kind, match=told):
            begin(sink)


@pytest.mark.parametrize(
    ("failure", "kind", "told"),
    [
        (503, UnavailableError, r"commits-avro-value.*HTTP 503"),
        (403, ConfigError, r"commits-avro-value.*HTTP 403.*user and password"),
    ],
)
def test_a_registry_that_gives_no_schema_of_commit_records_is_named_before_anything_is_made(
    make_settings: MakeSettings,
    topics: Topics,
    server: RegistryServer,
    in_avro: InAvro,
    failure: int,
    kind: type[Exception],
    told: str,
) -> None:
    server.failure = failure
    settings = in_avro(make_settings())
    refused(settings, kind, told)
    assert not topics.exist(settings.written_topics)


def test_a_subject_that_does_not_take_the_schema_of_commit_records_is_named(
    make_settings: MakeSettings, server: RegistryServer, in_avro: InAvro
) -> None:
    settings = in_avro(make_settings())
    (topic,) = settings.avro_commits
    server.incompatible[f"{topic}-value"] = "name mismatch: commit"
    refused(settings, OutputRefusedError, rf"schema of commit records.*{topic}-value.*name mismatch")
    refused(replace(settings, registry=None), ConfigError, r"commits-avro.*registry\.url")


@OF_BOTH
def test_a_check_registers_nothing(
    make_settings: MakeSettings, server: RegistryServer, in_avro: InAvro
) -> None:
    settings = in_avro(with_form(make_settings(), form(Format.AVRO), server))
    with closing(KafkaSink(settings)) as sink:
        sink.check(None)
    assert not server.subjects


def test_a_running_pipeline_needs_no_registry_for_its_commit_records(
    make_settings: MakeSettings,
    make_batch: MakeBatch,
    topics: Topics,
    server: RegistryServer,
    in_avro: InAvro,
) -> None:
    settings = in_avro(make_settings())
    sink = KafkaSink(settings)
    sink.open()
    server.failure = 503
    sink.write(QUERY, make_batch(0))
    sink.close()
    assert len(topics.avro_commits(settings)) == 1
