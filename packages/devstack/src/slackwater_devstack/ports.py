"""Free loopback ports that stay ours while a server is down."""

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
FIRST_PORT = 10_000
LAST_PORT_IF_UNKNOWN = 30_000
ATTEMPTS = 200
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A loopback port on which nothing listens, below the range of outgoing connections.

    A port that the kernel hands out may be taken by any outgoing connection while a restarted server
    is down (a client that retries can even connect to itself), so these are drawn by hand.

    Raises:
        OSError: no free port was found.
    """
    last = _last_port()
    for _ in range(ATTEMPTS):
        port = random.randint(FIRST_PORT, last)  # noqa: S311 - no secret
        if is_free(port):
            return port
    message = f"no free port between {FIRST_PORT} and {last} on {LOOPBACK} in {ATTEMPTS} attempts"
    raise OSError(message)


def is_free(port: int) -> bool:
    """Says whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def accepts_connections(port: int) -> bool:
    """Says whether something listens on the port."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0):
            return True
    except OSError:
        return False


def _last_port() -> int:
    try:
        first_outgoing = int(_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return LAST_PORT_IF_UNKNOWN
    return first_outgoing - 1 if first_outgoing > FIRST_PORT + ATTEMPTS else LAST_PORT_IF_UNKNOWN
