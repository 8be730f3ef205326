"""Outputs that are Delta tables: every version that is still there is a state."""

from collections.abc import Iterator

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from slackwater_certify.canonical import DocumentReader
from slackwater_certify.errors import UnreadableError
from slackwater_certify.outputs.output import OutputRecords
from slackwater_certify.outputs.snapshots import Row, records_of
from slackwater_certify.specification import OutputSpecification


def read_delta(output: OutputSpecification, reader: DocumentReader) -> OutputRecords:
    """All versions of the table, oldest first.

    Raises:
        UnreadableError: it cannot be read.
    """
    try:
        return records_of(reader, _snapshots(output.name), "commit times of the table's versions")
    except (DeltaError, OSError) as error:
        raise UnreadableError(f"Delta table {output.name}", str(error)) from error


def _snapshots(location: str) -> Iterator[tuple[int, list[Row]]]:
    table = DeltaTable(location)
    history = sorted(table.history(), key=lambda commit: int(commit["version"]))
    for commit in history:
        table.load_as_version(int(commit["version"]))
        yield int(commit["timestamp"]), table.to_pyarrow_table().to_pylist()
