"""The form of a view's records: how documents and keys are encoded, and the schemas that describe them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from slackwater.engine.payloads import Document
from slackwater.kafka.registry import Schema, SchemaKind
from slackwater.outputs.contract import Column, Format, KeyFormat, UnfitValueError
from slackwater.outputs.formats.avro import NAMESPACE, AvroEncoder, avro_name
from slackwater.outputs.formats.json_schema import json_schema
from slackwater.protocol import ConfigError, InputError
from slackwater.sql.plan import PublishedView

_KEY: Final = "key"
_SHOWN: Final = 200
_only_value = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_Encode = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class OutputForm:
    """The form of an output's values and keys. Plain data, which is sent to the workers.

    Attributes:
        view: The name of the view.
        columns: The columns of its documents.
        key: The columns of its keys; columns that are not selected have no type.
        value: The format of values.
        keys: The format of keys.
    """

    view: str
    columns: tuple[Column, ...]
    key: tuple[Column, ...]
    value: Format
    keys: KeyFormat

    @property
    def value_schema(self) -> Schema | None:
        """The schema of values that has to be registered."""
        if self.value is Format.AVRO:
            return Schema(SchemaKind.AVRO, self._value_encoder().schema)
        if self.value is Format.JSON_SCHEMA:
            return Schema(SchemaKind.JSON, json_schema(self.view, self.columns))
        return None

    @property
    def key_schema(self) -> Schema | None:
        """The schema of keys that has to be registered."""
        if self.keys is KeyFormat.AVRO:
            return Schema(SchemaKind.AVRO, self._key_encoder().schema)
        if self.keys is KeyFormat.JSON_SCHEMA:
            return Schema(SchemaKind.JSON, json_schema(f"{self.view} {_KEY}", self.key))
        return None

    def encoder(self) -> Callable[[Document], Document] | None:
        """Returns the function that turns documents into records, without schema ids; None if not needed.

        The function is pure. It raises :class:`InputError` for a value that the form cannot
        represent.
        """
        encode_value = self._value_encoder() if self.value is Format.AVRO else None
        encode_key: _Encode | None = None
        if self.keys is KeyFormat.AVRO:
            encode_key = self._key_encoder()
        elif self.keys is KeyFormat.STRING:
            encode_key = plain_text
        if encode_value is None and encode_key is None:
            return None
        view = self.view

        def encode(document: Document) -> Document:
            lsn, key, value = document
            try:
                return (
                    lsn,
                    key if encode_key is None else encode_key(key),
                    value if encode_value is None or value is None else encode_value(value),
                )
            except UnfitValueError as error:
                shown = key[:_SHOWN].decode(errors="replace")
                raise InputError(
                    f"view {view!r}, key {shown}: a value cannot be written to the output: {error}",
                    "correct the row, or cast the column to text in the view (a new revision)",
                ) from error

        return encode

    def _value_encoder(self) -> AvroEncoder:
        return AvroEncoder(f"{NAMESPACE}.{avro_name(self.view)}", self.columns)

    def _key_encoder(self) -> AvroEncoder:
        return AvroEncoder(f"{NAMESPACE}.{avro_name(self.view)}.{_KEY}", self.key)


def plain_text(key: bytes) -> bytes:
    """Returns the only value of a key as text: text without quotes, anything else as in JSON.

    Raises:
        UnfitValueError: It is NULL, for which there is no text.
    """
    (raw,) = _only_value(key).values()
    value: Any = bytes(raw)
    if value == b"null":
        raise UnfitValueError("the key is NULL, which cannot be written as text")
    return json.loads(value).encode() if value.startswith(b'"') else bytes(value)


def output_form(view: PublishedView, value: Format, keys: KeyFormat) -> OutputForm | None:
    """Returns the form of a view's records; None if they are its documents and keys without changes.

    Raises:
        ConfigError: The form cannot represent the view's columns or its key.
    """
    if value in (Format.JSON, Format.DEBEZIUM) and keys is KeyFormat.JSON:
        return None
    types = {column.name: column.type for column in view.outputs}
    columns = tuple(Column(column.name, column.type) for column in view.outputs)
    key = tuple(Column(name, types.get(name, "")) for name in view.key)
    of_view = f"view {view.name!r}"
    if keys is KeyFormat.STRING and len(key) != 1:
        raise ConfigError(
            f'{of_view}: key_format = "string" needs a key of one column, but it has {len(key)}',
            'set another key_format; the default is "json"',
        )
    missing = [column.name for column in key if not column.type]
    if keys in (KeyFormat.AVRO, KeyFormat.JSON_SCHEMA) and missing:
        raise ConfigError(
            f"{of_view}: its key has column {missing[0]!r}, which it does not select",
            f'select it, or set another key_format than "{keys}"',
        )
    form = OutputForm(view.name, columns, key, value, keys)
    try:
        form.encoder()
    except UnfitValueError as error:
        raise ConfigError(f"{of_view}: {error}", "give one another name with AS") from error
    return form
