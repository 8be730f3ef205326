"""Who may ask over HTTP: tokens, their file, and roles."""

import hashlib
import hmac
import logging
import secrets
import threading
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from slackwater.settings.declared import Reader
from slackwater.settings.errors import CommandConfigError

_log = logging.getLogger(__name__)

TOKEN_PREFIX = "slackwater_"  # noqa: S105 - so that scanners for secrets and people know one
_TOKEN_BYTES = 32


class Role(StrEnum):
    """What a client may do."""

    VIEWER = "viewer"
    """Read everything."""
    OPERATOR = "operator"
    """Read everything, and decide."""


@dataclass(frozen=True, slots=True)
class Token:
    """An entry of the file of tokens. It holds no secret: the token cannot be made of its hash."""

    name: str
    """Who has it, for the log."""
    role: Role
    sha256: str
    """Of the token, in hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class _TokenFile:
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a request."""

    name: str
    """Of the token, or the address without one."""
    role: Role | None
    """None: nothing may be read."""


def new_token(name: str, role: Role) -> tuple[str, str]:
    """Returns a new token, and its entry for the file of tokens."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    quoted = msgspec.json.encode(name).decode()  # which TOML reads as the same text
    return token, f'[[tokens]]\nname = {quoted}\nrole = "{role}"\nsha256 = "{_hash(token)}"\n'


def read_tokens(path: Path) -> tuple[Token, ...]:
    """Reads a file of tokens.

    Raises:
        CommandConfigError: it cannot be read, or is not as `slackwater token` writes it.
    """
    reader = Reader(shows_values=False)
    try:
        found = reader.read(_TokenFile, tomllib.loads(path.read_text()))
        reason = "\n".join(map(str, reader.problems))
    except (OSError, ValueError) as error:  # of TOML, of the encoding
        found, reason = None, str(error)
    if found is None:
        hint = "`slackwater token NAME` prints an entry for it"
        raise CommandConfigError(f"the file of tokens {path} cannot be used: {reason}", hint)
    return found.tokens


class Gate:
    """Knows clients by their tokens; follows the file while it changes. Thread-safe.

    Without a file everybody may read and nobody may decide, which is right on loopback only.

    Args:
        path: The file of tokens.

    Raises:
        CommandConfigError: the file cannot be used. Later it is left as it was, and `fault` says why.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp = None if path is None else _stamp(path)
        self._tokens = () if path is None else read_tokens(path)
        self.fault: str | None = None
        """Why changes of the file are not obeyed."""

    @property
    def has_tokens(self) -> bool:
        """Whether there is a file of tokens."""
        return self._path is not None

    def admit(self, authorization: str, address: str) -> Client:
        """Returns the client.

        Args:
            authorization: The header; empty: there is none.
            address: Where the client is.
        """
        if self._path is None:
            return Client(address, Role.VIEWER)
        with self._lock:
            self._follow()
        scheme, _, text = authorization.partition(" ")
        if scheme.lower() == "bearer":
            digest = _hash(text.strip())
            for token in self._tokens:
                if hmac.compare_digest(token.sha256.lower().encode(), digest.encode()):
                    return Client(token.name, token.role)
        return Client(address, None)

    def _follow(self) -> None:
        if self._path is None:
            return
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._tokens, self.fault = read_tokens(self._path), None
        except CommandConfigError as error:
            self.fault = str(error)
            _log.warning("the previous tokens stay in force: %s", error)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
