"""The changes of a view's table in a batch: documents as rows of the table, one per key."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from slackwater.engine.payloads import Document
from slackwater.outputs.contract import OutputTable, UnfitValueError
from slackwater.outputs.errors import OutputRefusedError
from slackwater.outputs.lake.columns import RowReader
from slackwater.outputs.lake.table import DELETED
from slackwater.protocol import format_position

_ROWS_AT_ONCE: Final = 10_000
"""The number of documents that are Python objects at the same time."""
_SHOWN_KEY: Final = 200


@dataclass(frozen=True, slots=True)
class Changes:
    """All changes of one table in a batch."""

    rows: Any
    """Arrow rows of the table and of ``DELETED``; each key occurs once."""
    documents: int
    """The number of documents in the batch, including several of one key."""
    deletes: int

    @property
    def remaining(self) -> Any:
        """The rows that are not deletes, without that column."""
        return self.rows.filter(pc.invert(self.rows[DELETED])).drop_columns([DELETED])


class ChangeReader:
    """Reads the documents of one view as changes of its table.

    Args:
        pipeline: The name of the pipeline, for messages.
        output: The table.
        several: Whether a batch may have several documents of a key; the newest counts.
    """

    def __init__(self, pipeline: str, output: OutputTable, *, several: bool) -> None:
        self._pipeline = pipeline
        self._output = output
        self._several = several
        self._row = RowReader(output.columns)
        by_name = {column.name: column for column in output.columns}
        self._key = RowReader([by_name[name] for name in output.key])

    @property
    def schema(self) -> Any:
        """The Arrow schema of the table."""
        return self._row.schema

    def read(self, shown: Iterable[Document]) -> Changes:
        """Returns the changes of the table, all of them in memory.

        Args:
            shown: The documents; those of a key are in the order of their commits.

        Raises:
            OutputRefusedError: A value does not fit its column; the error names view, key and column.
        """
        documents = deletes = 0
        found = []
        stream = iter(shown)
        newest: dict[bytes, Document] = {}
        while part := list(islice(stream, _ROWS_AT_ONCE)):
            documents += len(part)
            deletes += sum(document is None for _, _, document in part)
            if self._several:
                newest.update((each[1], each) for each in part)
            else:
                found.append(self._rows(part))
        if newest:
            parts = iter(newest.values())
            while part := list(islice(parts, _ROWS_AT_ONCE)):
                found.append(self._rows(part))
        rows = pa.concat_tables(found) if found else self._rows([])
        return Changes(rows, documents, deletes)

    def _rows(self, part: list[Document]) -> Any:
        there = [document for _, _, document in part if document is not None]
        gone = [key for _, key, document in part if document is None]
        try:
            rows, keys = self._row.table(there), self._key.table(gone)
        except UnfitValueError:
            raise self._first_unfit(part) from None
        blank = pa.table(
            {
                field.name: keys[field.name]
                if field.name in keys.schema.names
                else pa.nulls(len(gone), field.type)
                for field in self.schema
            },
            schema=self.schema,
        )
        flags = pa.array([False] * len(there) + [True] * len(gone), pa.bool_())
        return pa.concat_tables([rows, blank]).append_column(DELETED, flags)

    def _first_unfit(self, part: list[Document]) -> OutputRefusedError:
        """Finds the document that does not fit, by reading them one by one."""
        for lsn, key, document in part:
            try:
                if document is None:
                    self._key.table([key])
                else:
                    self._row.table([document])
            except UnfitValueError as error:
                shown = key.decode(errors="replace")[:_SHOWN_KEY]
                return OutputRefusedError(
                    self._pipeline,
                    f"a document of view {self._output.view!r} in table {self._output.name}, key {shown}, "
                    f"commit LSN {format_position(lsn)}",
                    str(error),
                    "correct the value in the source database or change the view (a new revision), then "
                    "start the pipeline again",
                )
        raise AssertionError("each of the documents by itself is valid")
