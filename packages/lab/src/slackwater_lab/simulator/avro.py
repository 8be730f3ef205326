"""Records in Avro, as a connector with Confluent's converter writes them, and the registry that it asks."""

import json
from collections.abc import Sequence
from functools import cache
from http import HTTPStatus
from io import BytesIO
from typing import Any

import fastavro

from slackwater.protocol import RegistrySettings
from slackwater_lab.simulator.connector import NOTIFICATIONS, TRANSACTIONS
from slackwater_lab.simulator.kafka import SentRecord

ADDRESS = "http://registry.invalid:8081"

Schema = dict[str, Any]


def _nullable(kind: Any) -> list[Any]:
    return ["null", kind]


def _record(name: str, namespace: str, /, **fields: Any) -> Schema:
    return {
        "type": "record",
        "name": name,
        "namespace": namespace,
        "fields": [_field(field, kind) for field, kind in fields.items()],
        "connect.name": f"{namespace}.{name}",
    }


def _field(name: str, kind: Any) -> Schema:
    is_nullable = isinstance(kind, list) and kind[0] == "null"
    return {"name": name, "type": kind} | ({"default": None} if is_nullable else {})


_DEBEZIUM = "io.debezium.connector.common"
_TEXT, _LONG = _nullable("string"), _nullable("long")
_SOURCE = _record(
    "Source",
    "io.debezium.connector.postgresql",
    version="string",
    connector="string",
    name="string",
    ts_ms="long",
    snapshot=[{"type": "string", "connect.name": "io.debezium.data.Enum"}, "null"],
    db="string",
    sequence=_TEXT,
    ts_us=_LONG,
    ts_ns=_LONG,
    schema="string",
    table="string",
    txId=_LONG,
    lsn=_LONG,
    xmin=_LONG,
    origin=_TEXT,
    origin_lsn=_LONG,
)
_BLOCK = _record("block", "event", id="string", total_order="long", data_collection_order="long")
_COLLECTION = _record("collection", "event", data_collection="string", event_count="long")
_TRANSACTION = _record(
    "TransactionMetadataValue",
    _DEBEZIUM,
    status="string",
    id="string",
    event_count=_LONG,
    data_collections=_nullable({"type": "array", "items": _nullable(_COLLECTION)}),
    ts_ms="long",
)
_NOTIFICATION = _record(
    "Notification",
    _DEBEZIUM,
    id="string",
    type="string",
    aggregate_type="string",
    additional_data=_nullable({"type": "map", "values": "string"}),
    timestamp="long",
)


def _envelope(topic: str, columns: Sequence[str]) -> Schema:
    row = _record("Value", topic, id="long", **dict.fromkeys(columns, _LONG))
    return _record(
        "Envelope",
        topic,
        before=_nullable(row),
        after=_nullable("Value"),
        source=_SOURCE,
        transaction=_nullable(_BLOCK),
        op="string",
        ts_ms=_LONG,
        ts_us=_LONG,
        ts_ns=_LONG,
    )


@cache
def _text_of(topic: str, columns: Sequence[str]) -> str:
    return json.dumps(_envelope(topic, columns) if columns else _record("Key", topic, id="long"))


@cache
def _parsed(text: str) -> Any:
    return fastavro.parse_schema(json.loads(text))


class AvroConverter:
    """Registers schemas and writes Avro in Confluent's wire format.

    Args:
        new_columns_from_lsn: Rows of commits at or above it have one column more.
    """

    def __init__(self, new_columns_from_lsn: int) -> None:
        self._new_columns_from_lsn = new_columns_from_lsn
        self._ids: dict[str, int] = {}
        self.is_away = False
        """Whether the registry does not answer."""

    def send(
        self, settings: RegistrySettings, method: str, address: str, path: str, body: bytes | None
    ) -> tuple[int, bytes]:
        """Answers as the registry does over HTTP."""
        if self.is_away:
            raise ConnectionRefusedError
        number = int(path.rpartition("/")[2])
        for text, schema_id in self._ids.items():
            if schema_id == number:
                return HTTPStatus.OK, json.dumps({"schema": text}).encode()
        return HTTPStatus.NOT_FOUND, b"{}"

    def convert(self, record: SentRecord) -> None:
        """Turns key and value of a record of JSON into Avro."""
        if record.key:
            record.key = self._written(_text_of(record.target[0], ()), json.loads(record.key))
        if record.value:
            record.value = self._written(self._schema_of(record), json.loads(record.value))

    def _schema_of(self, record: SentRecord) -> str:
        if record.target == TRANSACTIONS:
            return _fixed(0)
        if record.target == NOTIFICATIONS:
            return _fixed(1)
        is_new = record.change is not None and record.change[0] >= self._new_columns_from_lsn
        return _text_of(record.target[0], ("v", "w") if is_new else ("v",))

    def _written(self, text: str, value: Any) -> bytes:
        schema_id = self._ids.setdefault(text, len(self._ids) + 1)
        stream = BytesIO()
        stream.write(b"\0" + schema_id.to_bytes(4, "big"))
        fastavro.schemaless_writer(stream, _parsed(text), value)
        return stream.getvalue()


@cache
def _fixed(number: int) -> str:
    return json.dumps((_TRANSACTION, _NOTIFICATION)[number])
