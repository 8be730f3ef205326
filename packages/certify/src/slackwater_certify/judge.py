"""Judges outputs that claim no commit: each is a committed state, and no document goes back."""

from collections.abc import Iterable, Mapping

from slackwater_certify.canonical import DocumentReader, UnreadableValueError
from slackwater_certify.certificate import Kind
from slackwater_certify.fold import DocumentKey
from slackwater_certify.outputs.output import Output
from slackwater_certify.tally import ReadOutput, Tally, read_output
from slackwater_certify.versions import KeyVersions

_NOTHING = KeyVersions()
_NOTHING.add(0, 0, None)


class SequenceJudge:
    """Takes the outputs of each document in their order.

    An output is matched with the next committed state that equals it: states may be skipped, since an output
    may show the newest of several at once, but not shown again.
    """

    def __init__(
        self, versions: Mapping[DocumentKey, KeyVersions], reader: DocumentReader, tally: Tally,
        timed_since_ms: int | None = None,
    ) -> None:  # fmt: skip
        self._versions = versions
        self._reader = reader
        self._tally = tally
        self._timed_since_ms = timed_since_ms or 0
        self._reached: dict[DocumentKey, int] = {}

    def judge(self, outputs: Iterable[Output]) -> None:
        """Judges them all."""
        for output in outputs:
            self._tally.see(output)
            try:
                read = read_output(self._reader, output)
            except UnreadableValueError as error:
                self._tally.unreadable(output, str(error))
                continue
            self._judge(read)

    def finish(self) -> None:
        """What was never shown is lost."""
        for key, versions in self._versions.items():
            reached = self._reached.get(key, -1)
            shown = versions.digests[reached] if reached >= 0 else None
            if shown == versions.final:
                continue
            text = f"its last committed state, of LSN {versions.lsns[-1]}, was never shown"
            self._tally.findings.add(Kind.LOST, f"document {key}: {text}")

    def _judge(self, read: ReadOutput) -> None:
        versions = self._versions.get(read.key, _NOTHING)
        reached = self._reached.get(read.key, -1)
        found = _index(versions.digests, read.digest, reached + 1)
        if found is not None:
            self._reached[read.key] = found
            self._tally.right(read)
            if found and versions.times[found] >= self._timed_since_ms:
                self._tally.delay(read.output.visible_ms, versions.times[found])
        elif reached >= 0 and versions.digests[reached] == read.digest:
            self._tally.right(read)
            self._tally.findings.add(
                Kind.REPEATED, f"document {read.key} at {read.output.place}: shown before"
            )
        else:
            self._judge_unexpected(read, versions)

    def _judge_unexpected(self, read: ReadOutput, versions: KeyVersions) -> None:
        older = _index(versions.digests, read.digest, 0)
        if older is None:
            self._tally.wrong_value(read, Kind.TORN, f"{read.document} is no committed state of it")
            return
        self._reached[read.key] = older
        text = f"goes back to the state of LSN {versions.lsns[older]}"
        self._tally.right(read)
        self._tally.findings.add(Kind.ORDER, f"document {read.key} at {read.output.place}: {text}")


def _index(digests: list[bytes | None], wanted: bytes | None, start: int) -> int | None:
    try:
        return digests.index(wanted, start)
    except ValueError:
        return None
