"""A chain of Bloom filters: which keys were seen recently, in bounded memory, with a known error rate. Pure.

Time is divided into windows. Each window has its own filters, and is forgotten as a whole. The error rate is
that of the whole chain, and each window has an equal share of it. If a window receives more keys than
expected, it gets further filters: each of them is twice as large as the previous one, and gets half of the
window's remaining share.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from math import log

from rbloom import Bloom

from slackwater.protocol import ConfigError, StateError

_MAGIC = b"SWBF"
_VERSION = 2
_HEADER = struct.Struct(">4sBqIQQd")
"""Magic, version, start of the window in ms, number in the window, keys added, capacity, error rate."""
_CHECKSUM_BYTES = 16
_DIGEST_BYTES = 16


def digest_of(key: bytes) -> bytes:
    """Returns 16 bytes that represent a key, and are the same in every process, unlike Python's ``hash``."""
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()


def split_digests(joined: bytes) -> list[bytes]:
    """Splits joined digests."""
    return [joined[at : at + _DIGEST_BYTES] for at in range(0, len(joined), _DIGEST_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterPolicy:
    """How much a chain of filters remembers, and with which error rate.

    Raises:
        ConfigError: A number is out of range.
    """

    capacity: int
    """The expected number of keys of one partition within ``remember``. More keys take more memory."""
    error_rate: float
    """The maximum share of new keys that are wrongly reported as known."""
    remember: timedelta = timedelta(days=7)
    """The minimum time for which a key is known, by the timestamps of messages; less the time by which the
    clocks of the processes that receive them differ."""
    windows: int = 7
    """The number of windows that ``remember`` is divided into; one more window is kept."""

    def __post_init__(self) -> None:
        if self.capacity < 1 or self.windows < 1:
            problem = f"capacity is {self.capacity} and windows {self.windows}"
            raise ConfigError(problem, "expected positive numbers")
        if not 0 < self.error_rate < 1:
            raise ConfigError(f"error_rate is {self.error_rate}", "expected a rate such as 1e-6")
        if self.window_ms < 1:
            problem = f"remember is {self.remember}, divided into {self.windows} windows"
            raise ConfigError(problem, "expected at least a millisecond for each window")

    @property
    def window_ms(self) -> int:
        """The length of a window."""
        return int(self.remember.total_seconds() * 1000) // self.windows

    @property
    def memory_bytes(self) -> int:
        """The approximate memory of one partition, with the expected number of keys."""
        capacity, error_rate = self.size_of(0)
        return round((self.windows + 1) * capacity * -log(error_rate) / log(2) ** 2 / 8)

    def size_of(self, number: int) -> tuple[int, float]:
        """Returns capacity and error rate of a window's filter; the first filter has number 0."""
        capacity = -(-self.capacity // self.windows) * 2**number
        return capacity, self.error_rate / (self.windows + 1) / 2 ** (number + 1)


class _Filter:
    """One filter of a chain."""

    __slots__ = ("bloom", "capacity", "count", "error_rate", "is_changed", "number", "window_ms")

    def __init__(self, window_ms: int, number: int, policy: FilterPolicy) -> None:
        self.window_ms, self.number = window_ms, number
        self.capacity, self.error_rate = policy.size_of(number)
        self.bloom = Bloom(self.capacity, self.error_rate, _as_integer)
        self.count = 0
        self.is_changed = True


class FilterChain:
    """The digests of recently added keys.

    A key that was added is found until its window is forgotten. A key that was not added is found with a
    probability of at most the policy's error rate.

    Args:
        name: What it belongs to. Its stored filters can be restored under this name only.
    """

    def __init__(self, policy: FilterPolicy, name: bytes = b"") -> None:
        self._policy = policy
        self._name = name
        self._filters: list[_Filter] = []
        """The oldest first."""
        self._forgotten: list[tuple[int, int]] = []

    def __contains__(self, digest: bytes) -> bool:
        """Returns whether a key was added, or appears to have been."""
        return any(digest in each.bloom for each in reversed(self._filters))

    def __len__(self) -> int:
        """Returns the number of filters."""
        return len(self._filters)

    @property
    def error_rate(self) -> float:
        """The sum of its filters' error rates; never above the policy's."""
        return sum(each.error_rate for each in self._filters)

    def add(self, digests: Iterable[bytes], time_ms: int) -> None:
        """Adds new keys at a given time, and forgets windows that are too old at that time.

        A time before the newest one counts as the newest one.
        """
        for digest in digests:
            newest = self._at(time_ms)
            newest.bloom.add(digest)
            newest.count += 1
            newest.is_changed = True

    def take_changes(self) -> tuple[list[tuple[int, int, bytes]], list[tuple[int, int]]]:
        """Returns the filters that are new or have changed since the last call, and those that were removed.

        A filter consists of the start of its window, its number in the window, and its bytes.
        """
        changed = [each for each in self._filters if each.is_changed]
        gone, self._forgotten = self._forgotten, []
        for each in changed:
            each.is_changed = False
        return [(each.window_ms, each.number, _pack(each, self._name)) for each in changed], gone

    @classmethod
    def restore(cls, policy: FilterPolicy, packed: Sequence[bytes], name: bytes = b"") -> "FilterChain":
        """Returns a chain with stored filters.

        Raises:
            StateError: A filter is damaged, has an unknown format, or belongs to another chain.
        """
        chain = cls(policy, name)
        chain._filters = sorted(
            (_unpack(each, policy, name) for each in packed),
            key=lambda found: (found.window_ms, found.number),
        )
        if len({(each.window_ms, each.number) for each in chain._filters}) < len(packed):
            raise StateError("a stored filter is damaged: it is there twice", _ADVICE)
        return chain

    def _at(self, time_ms: int) -> _Filter:
        """Returns the filter for keys of a time."""
        length = self._policy.window_ms
        window_ms = time_ms - time_ms % length
        if not self._filters or self._filters[-1].window_ms < window_ms:
            self._forget(window_ms - self._policy.windows * length)
            self._filters.append(_Filter(window_ms, 0, self._policy))
        newest = self._filters[-1]
        if newest.count >= newest.capacity:
            newest = _Filter(newest.window_ms, newest.number + 1, self._policy)
            self._filters.append(newest)
        return newest

    def _forget(self, oldest_ms: int) -> None:
        self._forgotten += [(e.window_ms, e.number) for e in self._filters if e.window_ms < oldest_ms]
        self._filters = [each for each in self._filters if each.window_ms >= oldest_ms]


def _as_integer(digest: bytes) -> int:
    return int.from_bytes(digest, "big", signed=True)


def _pack(each: _Filter, name: bytes) -> bytes:
    numbers = each.window_ms, each.number, each.count, each.capacity, each.error_rate
    body = _HEADER.pack(_MAGIC, _VERSION, *numbers) + each.bloom.save_bytes()
    return body + _checksum(body, digest_of(name))


def _checksum(body: bytes, key: bytes) -> bytes:
    return blake2b(body, digest_size=_CHECKSUM_BYTES, key=key).digest()


def _unpack(packed: bytes, policy: FilterPolicy, name: bytes) -> _Filter:
    body, checksum = packed[:-_CHECKSUM_BYTES], packed[-_CHECKSUM_BYTES:]
    if len(body) < _HEADER.size or body[:4] != _MAGIC:
        raise StateError(
            "a stored filter is damaged: it lacks a complete header that begins with SWBF", _ADVICE
        )
    _, version, window_ms, number, count, capacity, error_rate = _HEADER.unpack_from(body)
    if version != _VERSION:
        problem = f"a stored filter has format {version}, but {_VERSION} is expected"
        raise StateError(problem, "upgrade all members of the group together")
    if checksum != _checksum(body, digest_of(name)):
        problem = "a stored filter is damaged, or belongs to another partition: its checksum does not match"
        raise StateError(problem, _ADVICE)
    found = _Filter(window_ms, number, policy)
    found.count, found.capacity, found.error_rate, found.is_changed = count, capacity, error_rate, False
    found.bloom = Bloom.load_bytes(body[_HEADER.size :], _as_integer)
    return found


_ADVICE = (
    "restore the table from a backup, or delete the partition's rows, which forgets the keys seen so far"
)
