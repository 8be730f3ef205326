"""What readers of pipelines need: that views stay readable at one commit, and one revision to read.

A lease asks for the first, and pipelines answer with holds. Both are in one compacted topic
(:data:`~slackwater.protocol.keys.LEASES_TOPIC`). A lease is written by a reader. Each pipeline that it names
answers with a hold: from then on it keeps the views readable at that commit, until the lease is over. A lease
is over at its time, or when its record is removed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from slackwater.protocol.codec import DeclaredRecords
from slackwater.protocol.commit_position import CommitPosition
from slackwater.protocol.keys import hold_key
from slackwater.protocol.records import Count, Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A reader needs the views of some pipelines at one commit, for a while."""

    id: str
    """Random; holds no slash."""
    source: str
    """The source of the commit."""
    timeline: Count
    commit_lsn: Count
    pipelines: tuple[str, ...]
    """Names with the revision, as in outputs."""
    holder: str
    """Who needs it: free text."""
    taken_ms: Moment
    """When it was taken, milliseconds since the epoch, by the reader's clock, as the next one."""
    expires_ms: Moment
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
    until_ms: Moment
    """The end of the lease as the pipeline knows it, milliseconds since the epoch."""
    refusal: str = ""
    """Why the pipeline does not keep the state; empty if it does."""


LeaseRecord = Lease | Hold
"""All records of the topic of leases."""


def lease_record_key(record: LeaseRecord) -> bytes:
    """Returns the key under which a record replaces the one before it."""
    key = record.id if isinstance(record, Lease) else hold_key(record.lease, record.pipeline)
    return key.encode()


_LEASES: DeclaredRecords[LeaseRecord] = DeclaredRecords(
    "record of the topic of leases", {"lease": Lease, "hold": Hold}
)
encode_lease_record, decode_lease_record = _LEASES.encode, _LEASES.decode
"""The codec of the topic of leases; decoding raises like :func:`~slackwater.protocol.decode_cut`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSwitch:
    """Readers of a pipeline read this revision from a commit on. The newest such record is valid."""

    base_name: str
    """The pipeline's name without the revision."""
    pipeline: str
    """The name with it."""
    revision: Annotated[int, Meta(ge=1)]
    source: str
    timeline: Count
    commit_lsn: Count
    """Readers read the previous revision up to this commit, where both revisions end a batch."""
    views: Mapping[str, str]
    """By view the name of its topic or table."""
    switched_ms: Moment
    """The time of the switch, milliseconds since the epoch."""

    @property
    def position(self) -> CommitPosition:
        """The commit, with its timeline."""
        return CommitPosition(self.timeline, self.commit_lsn)


_SWITCHES: DeclaredRecords[ReaderSwitch] = DeclaredRecords("switch of readers", {"": ReaderSwitch})
encode_reader_switch, decode_reader_switch = _SWITCHES.encode, _SWITCHES.decode
"""The codec of the values in the topic of a pipeline's readers; decoding raises like
:func:`~slackwater.protocol.decode_cut`."""
