"""Which rows of a touched key are read: only those that can change a result."""

from collections.abc import Collection, Iterator, Sequence

from slackwater_engine.index.contract import IndexTransaction
from slackwater_engine.state.entry import Entry, input_tag
from slackwater_sql.plan import Reads


class RowReader:
    """Reads unchanged rows of a stage's keys."""

    def __init__(self, reads: Sequence[Reads], *, has_accumulators: bool) -> None:
        """A reader.

        Args:
            reads: The mode of each input.
            has_accumulators: Keys have other entries beside their rows, perhaps very many.
        """
        self._reads = tuple(reads)
        self._tags = [input_tag(number) for number in range(len(reads))]
        self._has_accumulators = has_accumulators
        self._all_inputs = frozenset(range(len(reads)))
        self._meeting = frozenset(n for n, mode in enumerate(reads) if mode is not Reads.ALONE)

    def unchanged(
        self, contents: IndexTransaction, group: bytes, changed: Collection[bytes], *, whole: bool = False
    ) -> Iterator[tuple[int, bytes]]:
        """Input and contents of the rows to be read beside the changed ones.

        Args:
            contents: Of the bucket.
            group: With which the key's entries start.
            changed: Names of the rows that differ at some point.
            whole: All rows are wanted, whatever the modes.
        """
        width = len(group)
        inputs = {name[width] - 1 for name in changed}
        meeting = self._all_inputs
        if not whole:
            meeting = self._meeting
            inputs &= meeting
            if not inputs:
                return
        mode = Reads.GROUP
        only = -1
        if len(inputs) == 1 and not whole:
            (only,) = inputs
            mode = self._reads[only]
        if mode is Reads.GROUP:
            yield from self._all(contents, group, changed, meeting)
            return
        for number in sorted(meeting - {only}):
            for _, row in contents.group(group + self._tags[number]):
                yield number, row
        if mode is Reads.CHANGED_AND_WITNESS:
            witness = next((e for e in contents.scan(group + self._tags[only]) if e[0] not in changed), None)
            if witness is not None:
                yield only, witness[1]

    def of_input(self, contents: IndexTransaction, group: bytes, number: int) -> list[Entry]:
        """All rows of an input."""
        return contents.group(group + self._tags[number])

    def _all(
        self, contents: IndexTransaction, group: bytes, changed: Collection[bytes], inputs: frozenset[int]
    ) -> Iterator[tuple[int, bytes]]:
        if self._has_accumulators or inputs != self._all_inputs:
            for number in sorted(inputs):
                for name, row in contents.group(group + self._tags[number]):
                    if name not in changed:
                        yield number, row
            return
        width = len(group)
        for name, row in contents.group(group):
            number = name[width] - 1
            if number in inputs and name not in changed:
                yield number, row
