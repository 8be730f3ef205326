"""Records in Avro, as a connector with Confluent's converter writes them, and the registry that it asks."""

import json
from functools import cache
from http import HTTPStatus
from io import BytesIO
from typing import Any

import fastavro

from slackwater.protocol import RegistrySettings
from slackwater_lab.debezium.records import change_value, end_value, notification_value
from slackwater_lab.simulator.connector import NOTIFICATIONS, TRANSACTIONS
from slackwater_lab.simulator.kafka import SentRecord

ADDRESS = "http://registry.invalid:8081"


def _schema(name: str, sample: Any) -> Any:
    """The type of values like this one, each of which may be null."""
    match sample:
        case int():
            return "long"
        case list():
            return {"type": "array", "items": ["null", _schema(f"{name}_item", sample[0])]}
        case dict() if name.endswith("additional_data"):
            return {"type": "map", "values": "string"}
        case dict():
            fields = [
                {"name": field, "type": ["null", _schema(f"{name}_{field}", value)], "default": None}
                for field, value in sample.items()
            ]
            return {"type": "record", "name": name, "fields": fields, "connect.name": name}
    return "string"


def _text(name: str, sample: bytes) -> str:
    return json.dumps(_schema(name, json.loads(sample)))


_TRANSACTION = _text("Transaction", end_value(1, 1, {"t": 1}))
_NOTIFICATION = _text("Notification", notification_value("STARTED"))


@cache
def _envelope(topic: str, *columns: str) -> str:
    row = dict.fromkeys(("id", *columns), 1)
    sample = change_value("s.t", "u", position=(1, 1), orders=(1, 1), before=row, after=row)
    return _text(f"{topic}.Envelope", sample)


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
            record.key = self._written(_text(f"{record.target[0]}.Key", record.key), json.loads(record.key))
        if record.value:
            record.value = self._written(self._schema_of(record), json.loads(record.value))

    def _schema_of(self, record: SentRecord) -> str:
        if record.target in (TRANSACTIONS, NOTIFICATIONS):
            return _TRANSACTION if record.target == TRANSACTIONS else _NOTIFICATION
        is_new = record.change is not None and record.change[0] >= self._new_columns_from_lsn
        return _envelope(record.target[0], "v", *["w"] * is_new)

    def _written(self, text: str, value: Any) -> bytes:
        schema_id = self._ids.setdefault(text, len(self._ids) + 1)
        stream = BytesIO()
        stream.write(b"\0" + schema_id.to_bytes(4, "big"))
        fastavro.schemaless_writer(stream, _parsed(text), value)
        return stream.getvalue()
