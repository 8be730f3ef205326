"""Where pages are served over HTTP, and to whom. Without a web server, which only those import that serve."""

import hashlib
import hmac
import logging
import secrets
import socket
import ssl
import threading
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from slackwater.settings.declared import Reader
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.model import HttpSection

if TYPE_CHECKING:  # only those import a web server that serve
    from starlette.routing import Route

_LOCAL_DOMAINS = (".svc", ".local", ".internal", ".localhost", ".localdomain")
"""Domains that nobody can register, so that no page on the internet can have a name in them."""
_BACKLOG = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Where pages are served, and to whom."""

    setting: str
    """The setting that says where, for messages: ``sidecar.http``."""
    address: str
    """``host:port``; port 0: any free one."""
    access: HttpSection
    """Tokens, certificates and limits."""
    section: str = "http"
    """The section with these, for messages."""
    is_private: bool = False
    """Whether clients without a token or a certificate must be on this machine. Otherwise everybody who
    reaches the port may read, under any name of a private network."""

    def serves(self, host: str) -> bool:
        """Returns whether a Host header is a name under which pages are served.

        A page on the internet can let its own name stand for any address (DNS rebinding), and would then be
        allowed to read the answers. It has neither a token nor the certificate of this server; without them,
        only names are served that nobody can register.
        """
        if self.access.tokens is not None or self.access.certificate is not None:
            return True
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if self.is_private:
            return not name or is_loopback(name)
        with suppress(ValueError):
            ip_address(name)
            return True
        return "." not in name or name.endswith(_LOCAL_DOMAINS) or name == own_name()


def http_settings(setting: str, address: str | None, access: HttpSection) -> HttpSettings | None:
    """Returns where the pages of a sidecar or a run are served, and to whom; None: nowhere."""
    return None if address is None else HttpSettings(setting=setting, address=address, access=access)


@contextmanager
def serving(http: HttpSettings | None, routes: "Callable[[], Sequence[Route]]") -> Iterator[str | None]:
    """Serves pages during the block.

    Without settings, nothing is served, and there is no address.

    Raises:
        CommandConfigError: the address is malformed, in use or not this machine's, or a certificate cannot be
            used.
    """
    if http is None:
        yield None
        return
    from slackwater.command.http_server import HttpServer  # which takes a while to import

    server = HttpServer(routes(), http)
    server.start()
    with closing(server):
        yield server.address


def is_loopback(host: str) -> bool:
    """Returns whether a name or an address is this machine's own, which no other machine can reach."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@cache
def own_name() -> str:
    """Returns the full name of this machine; the first call may wait for DNS."""
    return socket.getfqdn().lower()


def listening_socket(http: HttpSettings) -> socket.socket:
    """Returns a socket at which connections are waiting from now on.

    Raises:
        CommandConfigError: the address is malformed, in use or not this machine's; or other machines could
            read everything there, although they must not.
    """
    host, port = _host_and_port(http)
    is_known = http.access.tokens is not None or http.access.client_ca is not None
    if http.is_private and not is_known and not is_loopback(host):
        tokens, certificates = f"{http.section}.tokens (see `slackwater token`)", f"{http.section}.client_ca"
        raise CommandConfigError(
            f"{http.setting} is {http.address}, so other machines could read everything",
            f"listen on 127.0.0.1, or set {tokens} or {certificates}",
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise _cannot_listen(http, str(error)) from error


def url_of(http: HttpSettings, listening: socket.socket) -> str:
    """Returns ``http://host:port`` with the port that was chosen, or ``https``."""
    host, port = listening.getsockname()[:2]
    scheme = "http" if http.access.certificate is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def tls_context(http: HttpSettings) -> ssl.SSLContext | None:
    """Returns what encrypts connections; None: nothing does.

    Raises:
        CommandConfigError: files of the certificate are missing, do not fit each other or cannot be used.
    """
    access, section = http.access, http.section
    if (access.certificate is None) != (access.key is None):
        problem = f"{section}.certificate and {section}.key must be set together, and one is missing"
        raise CommandConfigError(problem, "set both, or neither for HTTP without TLS")
    if access.certificate is None:
        if access.client_ca is not None:
            problem = f"{section}.client_ca requires client certificates, which need TLS"
            raise CommandConfigError(problem, f"also set {section}.certificate and {section}.key")
        return None
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=access.client_ca)
        context.load_cert_chain(access.certificate, access.key)
    except OSError as error:  # SSLError is one
        problem = f"{section}.certificate {access.certificate}, its key or {section}.client_ca cannot be used"
        raise CommandConfigError(problem, str(error)) from error
    context.verify_mode = ssl.CERT_NONE if access.client_ca is None else ssl.CERT_REQUIRED
    return context


def _host_and_port(http: HttpSettings) -> tuple[str, int]:
    host, colon, port = http.address.rpartition(":")
    if not colon or not port.isdigit() or int(port) >= 1 << 16:
        raise _cannot_listen(http, "expected host:port")
    return host.strip("[]") or "127.0.0.1", int(port)


def _cannot_listen(http: HttpSettings, reason: str) -> CommandConfigError:
    return CommandConfigError(
        f"cannot listen for HTTP at {http.address}: {reason}",
        f"set {http.setting} to host:port of this machine, port 0 for any free port",
    )


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
    """An entry in the file of tokens. It contains no secret: the token cannot be derived from its hash."""

    name: str
    """The holder, for the log."""
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
    """None: the client may not read anything."""


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
    """Identifies clients by their tokens, and rereads the file when it changes. Thread-safe.

    Without a file, everybody may read and nobody may decide, which is right only on loopback.

    Raises:
        CommandConfigError: the file cannot be used. Later, the previous tokens stay valid: see `fault`.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp = None if path is None else _stamp(path)
        self._tokens = () if path is None else read_tokens(path)
        self.fault: str | None = None
        """The reason why changes of the file are ignored."""

    def admit(self, authorization: str, address: str) -> Client:
        """Returns the client at an address, by its header; empty: there is none."""
        if self._path is None:
            return Client(address, Role.VIEWER)
        with self._lock:
            self._follow(self._path)
        scheme, _, text = authorization.partition(" ")
        if scheme.lower() == "bearer":
            digest = _hash(text.strip())
            for token in self._tokens:
                if hmac.compare_digest(token.sha256.lower().encode(), digest.encode()):
                    return Client(token.name, token.role)
        return Client(address, None)

    def _follow(self, path: Path) -> None:
        before, self._stamp = self._stamp, _stamp(path)
        if before == self._stamp:
            return
        try:
            self._tokens, self.fault = read_tokens(path), None
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
