"""Which revision of a pipeline its readers read: the record, and its codec."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from slackwater.protocol.codec import PROTOCOL_VERSION, Fields, dump, load
from slackwater.protocol.commit_position import CommitPosition

_TEXTS = ("base_name", "pipeline", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSwitch:
    """Readers of a pipeline read this revision from a commit on. The newest such record is valid."""

    base_name: str
    """The pipeline's name without the revision."""
    pipeline: str
    """The name with it."""
    revision: int
    source: str
    timeline: int
    commit_lsn: int
    """Readers read the previous revision up to this commit, where both revisions end a batch."""
    views: Mapping[str, str]
    """By view the name of its topic or table."""
    switched_ms: int
    """The time of the switch, milliseconds since the epoch."""

    @property
    def position(self) -> CommitPosition:
        """The commit, with its timeline."""
        return CommitPosition(self.timeline, self.commit_lsn)


def encode_reader_switch(record: ReaderSwitch) -> bytes:
    """Encodes the value of a record in the topic of a pipeline's readers."""
    return dump({"v": PROTOCOL_VERSION, **asdict(record)})


def decode_reader_switch(data: bytes) -> ReaderSwitch:
    """Decodes a switch of readers; raises like :func:`~slackwater.protocol.decode_cut`."""
    return load("switch of readers", data, _reader_switch)


def _reader_switch(d: Fields) -> ReaderSwitch:
    views = d.mapping("views")
    texts = {name: d.text(name) for name in _TEXTS}
    return ReaderSwitch(
        revision=d.number("revision", least=1),
        timeline=d.number("timeline"),
        commit_lsn=d.number("commit_lsn"),
        views={view: Fields(views).text(view) for view in views},
        switched_ms=d.moment("switched_ms"),
        **texts,
    )
