"""Chooses the adapter for an output."""

from collections.abc import Callable

from slackwater_certify.canonical import DocumentReader
from slackwater_certify.connections import Connections
from slackwater_certify.outputs.output import OutputRecords
from slackwater_certify.outputs.topic import follow_topic, read_topic
from slackwater_certify.specification import OutputKind, OutputSpecification


def read_output(
    output: OutputSpecification, reader: DocumentReader, connections: Connections, now_ms: Callable[[], int]
) -> OutputRecords:
    """What the output holds now.

    Raises:
        CertifyError: it cannot be read.
    """
    match output.kind:
        case OutputKind.TOPIC:
            return read_topic(output, connections)
        case OutputKind.POSTGRES:
            from slackwater_certify.outputs.postgres import read_table

            return read_table(output, reader, connections, now_ms)
        case OutputKind.DELTA:
            from slackwater_certify.outputs.delta import read_delta

            return read_delta(output, reader)
        case OutputKind.ICEBERG:
            from slackwater_certify.outputs.iceberg import read_iceberg

            return read_iceberg(output, reader)


def follow_output(
    output: OutputSpecification,
    reader: DocumentReader,
    connections: Connections,
    is_over: Callable[[], bool],
    now_ms: Callable[[], int],
) -> OutputRecords:
    """What becomes visible until it is over, with arrival times; lake tables know their times themselves.

    Raises:
        CertifyError: it cannot be read.
    """
    match output.kind:
        case OutputKind.TOPIC:
            return follow_topic(output, connections, is_over, now_ms)
        case OutputKind.POSTGRES:
            from slackwater_certify.outputs.postgres import watch_table

            return watch_table(output, reader, connections, is_over, now_ms)
        case _:
            return read_output(output, reader, connections, now_ms)
