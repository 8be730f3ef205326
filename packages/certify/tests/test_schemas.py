"""Records that name a schema of a registry mean the same to the certifier as documents in JSON."""

import json
from collections.abc import Iterator

import duckdb
import pytest
from duckdb import sqltype

from slackwater.kafka.registry import wire_header
from slackwater.outputs.avro import AvroEncoder
from slackwater.sql.duckdb_sql import Field, document_expression
from slackwater.sql.plan import OutputColumn
from slackwater_certify.canonical import Column, DocumentReader, shape_of
from slackwater_certify.errors import CertifyConfigError, CertifyError
from slackwater_certify.kafka import RecordDecoder
from slackwater_certify.specification import Connections
from slackwater_lab.fakes.registry import RegistryServer

VALUES = {
    "HUGEINT": "170",
    "DECIMAL(10,2)": "-0.50",
    "DOUBLE": "1e300",
    "DATE": "'1969-12-31'",
    "TIME": "'10:11:12.5'",
    "TIMESTAMP": "'2026-11-20 10:11:12.123456'",
    "TIMESTAMP WITH TIME ZONE": "'2026-11-20 10:11:12+02'",
    "UUID": "'0b0e6aa0-7f2c-4f3a-9d0e-1f2a3b4c5d6e'",
    "BLOB": "'\\x00\\xFF'",
    "JSON": '\'{"b": [1.50, null], "a": 1}\'',
    'STRUCT("a b" DECIMAL(4,1), seen TIMESTAMP[])[]': "[{'a b': 1.5, 'seen': ['2026-11-20']}, NULL]",
    "MAP(VARCHAR, INTEGER)": "MAP {'x': 1, 'y': NULL}",
}


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer(user="u", password="p") as running:
        yield running


def decoder(
    registry: str | None = None, user: str | None = None, password: str | None = None
) -> RecordDecoder:
    return RecordDecoder(Connections(registry=registry, registry_user=user, registry_password=password))


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("is_null", [False, True])
def test_a_document_in_avro_is_the_one_in_json(server: RegistryServer, kind: str, is_null: bool) -> None:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        value = "NULL" if is_null else VALUES[kind]
        relation = connection.sql(f'SELECT CAST({value} AS {kind}) AS "a column"')
        fields = (Field("a column", '"a column"', relation.types[0]),)
        document = relation.project(document_expression(fields)).fetchall()[0][0]
    encoder = AvroEncoder("slackwater.v", [OutputColumn("a column", str(fields[0].type))])
    reader = DocumentReader([Column("a column", sqltype(kind), shape_of(sqltype(kind)))], ())
    decode = decoder(server.url, "u", "p")

    found = decode(wire_header(server.register(encoder.schema)) + encoder(document))

    assert reader.document(found) == reader.document(json.loads(document))


def test_a_json_schema_is_not_needed_to_read(server: RegistryServer) -> None:
    schema_id = server.register('{"type": "object"}', schemaType="JSON")
    decode = decoder(server.url, "u", "p")

    assert [decode(wire_header(schema_id) + b'{"id":1}') for _ in range(2)] == [{"id": 1}] * 2
    assert server.requests == [f"/schemas/ids/{schema_id}"]
    assert decode(b'{"id":1}') == {"id": 1}


@pytest.mark.parametrize("data", [b"\0\0", b"\0\0\0\0\x01", b"\0\0\0\0\x01\x02\x02"])
def test_bytes_that_do_not_fit_their_schema_are_a_problem_of_the_output(
    server: RegistryServer, data: bytes
) -> None:
    assert server.register('"long"') == 1

    with pytest.raises(ValueError, match=r"bytes|EOF"):
        decoder(server.url, "u", "p")(data)


def test_a_registry_that_is_missing_or_refuses_says_what_to_do(server: RegistryServer) -> None:
    record = wire_header(server.register('"long"')) + b"\x02"

    with pytest.raises(CertifyConfigError, match=r"registry\.url"):
        decoder()(record)
    with pytest.raises(CertifyConfigError, match=r"refuses schema 1 \(HTTP 401\); check user"):
        decoder(server.url)(record)
    with pytest.raises(CertifyError, match=r"schema 2 of .*: HTTP 404"):
        decoder(server.url, "u", "p")(wire_header(2))
