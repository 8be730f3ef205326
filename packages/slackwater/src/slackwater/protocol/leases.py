"""Leases: a reader requests that views stay readable at one commit, and pipelines answer with holds.

Both are in one compacted topic (:data:`~slackwater.protocol.keys.LEASES_TOPIC`). A lease is written by a
reader. Each pipeline that it names answers with a hold: from then on it keeps the views readable at that
commit, until the lease is over. A lease is over at its time, or when its record is removed.
"""

from dataclasses import asdict, dataclass

from slackwater.protocol.codec import PROTOCOL_VERSION, Fields, dump, load
from slackwater.protocol.commit_position import CommitPosition
from slackwater.protocol.keys import hold_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A reader needs the views of some pipelines at one commit, for a while."""

    id: str
    """Random; holds no slash."""
    source: str
    """The source of the commit."""
    timeline: int
    commit_lsn: int
    pipelines: tuple[str, ...]
    """Names with the revision, as in outputs."""
    holder: str
    """Who needs it: free text."""
    taken_ms: int
    """When it was taken, milliseconds since the epoch, by the reader's clock, as the next one."""
    expires_ms: int
    """When it expires."""

    @property
    def position(self) -> CommitPosition:
        """The commit."""
        return CommitPosition(self.timeline, self.commit_lsn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A pipeline's answer to a lease: it keeps the state, or says why it does not."""

    lease: str
    """The id."""
    pipeline: str
    until_ms: int
    """The end of the lease as the pipeline knows it, milliseconds since the epoch."""
    refusal: str = ""
    """Why the pipeline does not keep the state; empty if it does."""


LeaseRecord = Lease | Hold
"""All records of the topic of leases."""


def lease_record_key(record: LeaseRecord) -> bytes:
    """Returns the key under which a record replaces the one before it."""
    key = record.id if isinstance(record, Lease) else hold_key(record.lease, record.pipeline)
    return key.encode()


def encode_lease_record(record: LeaseRecord) -> bytes:
    """Encodes the value of a record in the topic of leases."""
    kind = "lease" if isinstance(record, Lease) else "hold"
    return dump({"v": PROTOCOL_VERSION, "kind": kind, **asdict(record)})


def decode_lease_record(data: bytes) -> LeaseRecord:
    """Decodes a record of the topic of leases; raises like :func:`~slackwater.protocol.decode_cut`."""
    return load("record of the topic of leases", data, _lease_record)


def _lease_record(d: Fields) -> LeaseRecord:
    kind = d.text("kind")
    if kind == "lease":
        return Lease(
            id=d.text("id"),
            source=d.text("source"),
            timeline=d.number("timeline"),
            commit_lsn=d.number("commit_lsn"),
            pipelines=d.text_list("pipelines"),
            holder=d.text("holder"),
            taken_ms=d.moment("taken_ms"),
            expires_ms=d.moment("expires_ms"),
        )
    if kind == "hold":
        return Hold(
            lease=d.text("lease"),
            pipeline=d.text("pipeline"),
            until_ms=d.moment("until_ms"),
            refusal=d.text("refusal"),
        )
    raise ValueError(f"kind is {kind!r}")
