"""How often somebody may ask, and whether it is this machine that does."""

from collections import OrderedDict
from ipaddress import ip_address

from slackwater.protocol import Clock

_MANY_CLIENTS = 10_000


class RateLimit:
    """Lets each client ask so often; who has not asked for long may ask more often for a moment.

    Args:
        per_second: Requests, for as long as one likes.
        burst: Requests at once.
        clock: The time.
    """

    def __init__(self, per_second: float, burst: int, clock: Clock) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """What each client has left, and as of when; in the order in which they asked last."""

    def take(self, client: str) -> float:
        """Takes a request; returns after how many seconds it is allowed: 0 is now, and only that counts."""
        now = self._clock.monotonic()
        left, since = self._left.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_second)
        is_allowed = left >= 1
        self._left[client] = (left - 1 if is_allowed else left), now
        if len(self._left) > _MANY_CLIENTS:
            self._left.popitem(last=False)
        return 0.0 if is_allowed else (1 - left) / self._per_second


def is_loopback(host: str) -> bool:
    """Says whether a name or an address is this machine's own, which nobody else can reach."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
