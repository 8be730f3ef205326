"""Brokers and stacks as only tests need them: routes that can be disturbed, users, a second broker."""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from slackwater.dev import DevStack, DevStackSettings, KafkaBroker, Lifetime, Server
from slackwater.dev.java import Properties
from slackwater.dev.kafka import broker_properties
from slackwater.dev.processes import wrong_setting
from slackwater.dev.server import LOOPBACK
from slackwater_lab.servers.proxy import TcpProxy

_ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
_ROUTE = re.compile(r"[a-z][a-z0-9_]*")
_LOGIN = "org.apache.kafka.common.security"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSecurity:
    """Security of one listener."""

    protocol: str
    """``SSL``, ``SASL_SSL`` or ``SASL_PLAINTEXT``."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Of this listener, by their names without ``listener.name.<name>.``."""
    allowed_url: str = ""
    """The only address from which the broker's Java may fetch keys of tokens."""

    def over_tls(self, keys: Path, authority: Path, *, wants_certificate: bool = False) -> "ListenerSecurity":
        """Returns the same over TLS.

        The keys are the broker's key and certificate; the authority signs clients', whose common names are
        the users if they are wanted. All are PEM files.
        """
        protocol = self.protocol.replace("PLAINTEXT", "SSL")
        files = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keys),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority),
            "ssl.client.auth": "required" if wants_certificate else "none",
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
        }
        return replace(self, protocol=protocol, properties={**self.properties, **files})


NOBODY_SAYS = ListenerSecurity(protocol="PLAINTEXT")
"""Clients do not say who they are; over TLS their certificates may."""


def plain_users(users: Mapping[str, str]) -> ListenerSecurity:
    """Returns what a listener needs at which users with these passwords log in by SASL/PLAIN."""
    known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    return _sasl("PLAIN", f"{_LOGIN}.plain.PlainLoginModule required {known};")


def scram_users() -> ListenerSecurity:
    """Returns what a listener needs at which users log in by SCRAM-SHA-512; the admin client makes them."""
    return _sasl("SCRAM-SHA-512", f"{_LOGIN}.scram.ScramLoginModule required;")


def token_users(keys_url: str, issuer: str, audience: str) -> ListenerSecurity:
    """Returns what a listener needs at which users show signed tokens (SASL/OAUTHBEARER)."""
    found = _sasl("OAUTHBEARER", f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule required;")
    properties = {
        **found.properties,
        "oauthbearer.sasl.server.callback.handler.class": (
            f"{_LOGIN}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        "sasl.oauthbearer.jwks.endpoint.url": keys_url,
        "sasl.oauthbearer.expected.issuer": issuer,
        "sasl.oauthbearer.expected.audience": audience,
    }
    return replace(found, properties=properties, allowed_url=keys_url)


def _sasl(mechanism: str, login: str) -> ListenerSecurity:
    properties = {
        "sasl.enabled.mechanisms": mechanism,
        f"{mechanism.lower()}.sasl.jaas.config": login,
    }
    return ListenerSecurity(protocol="SASL_PLAINTEXT", properties=properties)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """The address at which a broker listens, and the one that it tells its clients."""

    name: str
    """Letters, digits, ``_``."""
    port: int
    advertised_port: int
    """Another one than ``port`` when a proxy is in between."""
    security: ListenerSecurity = NOBODY_SAYS
    """How it finds out who connects."""


class LabBroker(KafkaBroker):
    """A broker with further listeners.

    Args:
        folder: Data and logs.
        routes: Names of further listeners, each behind a proxy in this process: what a client reaches over
            a route can be disturbed without disturbing others. Lower case letters, digits, ``_``.
        secured: Further listeners by name, lower case letters, at which clients say who they are. With them
            there is access control: a user may do what ACLs allow, and clients of the first
            listener may do everything.
        named: Those of any broker.
    """

    def __init__(
        self,
        folder: Path,
        *,
        routes: Sequence[str] = (),
        secured: Mapping[str, ListenerSecurity] | None = None,
        **named: Any,
    ) -> None:
        super().__init__(folder, **named)
        self._secured = dict(secured or {})
        urls = ",".join(each.allowed_url for each in self._secured.values() if each.allowed_url)
        self._java_options += (f"-D{_ALLOWED_URLS}={urls}",) if urls else ()
        self._formatting = threading.Lock()
        self._proxies = {route: TcpProxy(partial(self._port, f"route {route}")) for route in routes}

    def bootstrap_for(self, listener: str) -> str:
        """``bootstrap.servers`` for clients that say who they are at a listener."""
        return f"{LOOPBACK}:{self._port(listener)}"

    def proxy(self, route: str) -> TcpProxy:
        """The proxy of a route; runs from the first start of the broker until it is stopped in order."""
        return self._proxies[route]

    def bootstrap_over(self, route: str) -> str:
        """``bootstrap.servers`` for clients that use a route; all their connections go through its proxy."""
        return f"{LOOPBACK}:{self.proxy(route).port}"

    def cluster_id(self) -> str:
        """The id of the cluster; formats the log folder when that has not happened yet. Thread-safe."""
        self._format()
        text = (self._data() / "meta.properties").read_text()
        return re.search(r"^cluster\.id=(.*)$", text, re.MULTILINE)[1]  # type: ignore[index]

    def stop(self) -> None:
        super().stop()
        for proxy in self._proxies.values():
            proxy.stop()

    def _prepare(self) -> None:
        for proxy in self._proxies.values():
            proxy.start()
        super()._prepare()

    def _format(self) -> None:
        with self._formatting:
            super()._format()

    def _properties(self) -> Properties:
        listeners = self._listeners()
        plain = broker_properties(self.port, self.controller_port, self._data(), {})
        controller = f"CONTROLLER://{LOOPBACK}:{self.controller_port}"
        return {**plain, **listener_properties(listeners, controller), **self._overrides}

    def _listeners(self) -> list[Listener]:
        found = [Listener(name="PLAINTEXT", port=self.port, advertised_port=self.port)]
        for name, security in self._secured.items():
            port = self._port(name)
            found.append(Listener(name=name.upper(), port=port, advertised_port=port, security=security))
        return found + [
            Listener(name=route.upper(), port=self._port(f"route {route}"), advertised_port=proxy.port)
            for route, proxy in self._proxies.items()
        ]


class SecondBroker(LabBroker):
    """A further broker of a first one's cluster: partitions it leads can be slow or away by themselves.

    Takes the same arguments, and the first broker, which must be started at about the same time.
    """

    name: ClassVar[str] = "kafka-2"
    node_id: ClassVar[int] = 2

    def __init__(self, first: LabBroker, **named: Any) -> None:
        super().__init__(first.folder, **named)
        self._first = first

    def _new_cluster_id(self) -> str:
        return self._first.cluster_id()

    def _properties(self) -> Properties:
        controller = self._first.controller_port
        plain = broker_properties(self.port, controller, self._data(), {})
        return {
            **plain,
            **listener_properties(self._listeners()),
            "process.roles": "broker",
            "node.id": str(self.node_id),
            **self._overrides,
        }


def listener_properties(listeners: Sequence[Listener], *others: str) -> Properties:
    """Returns what a broker with several listeners needs; brokers talk to each other over the first one."""
    bound = [f"{listener.name}://{LOOPBACK}:{listener.port}" for listener in listeners]
    advertised = [f"{listener.name}://{LOOPBACK}:{listener.advertised_port}" for listener in listeners]
    protocols = [f"{each.name}:{each.security.protocol}" for each in listeners]
    return {
        "listeners": ",".join([*bound, *others]),
        "advertised.listeners": ",".join(advertised),
        "inter.broker.listener.name": listeners[0].name,
        "listener.security.protocol.map": ",".join([*protocols, "CONTROLLER:PLAINTEXT"]),
        **_access_control(listeners),
    }


def _access_control(listeners: Sequence[Listener]) -> Properties:
    """What users need; nothing without them. Clients that do not say who they are may do everything."""
    found: dict[str, str] = {}
    for listener in listeners:
        if listener.security is not NOBODY_SAYS:
            prefix = f"listener.name.{listener.name.lower()}"
            found |= {f"{prefix}.{name}": value for name, value in listener.security.properties.items()}
            found |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
            }
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LabStackSettings(DevStackSettings):
    """A stack with what only tests need."""

    second_kafka: bool = False
    """Whether there is a second broker, for partitions that are slow or away by themselves."""
    kafka_routes: tuple[str, ...] = ()
    """Routes to the brokers that go through proxies; Connect uses the one named ``connect``, if any."""

    def __post_init__(self) -> None:
        """Refuse what no server could be started with."""
        DevStackSettings.__post_init__(self)
        for route in self.kafka_routes:
            if not _ROUTE.fullmatch(route):
                raise wrong_setting("kafka_routes", repr(route), "lower case letters, digits and '_'")


ServerKinds = Mapping[type[Server], Callable[..., Any]]
"""By class of a stack's servers what is called like it, and made in its place."""
EMBEDDED_KINDS: ServerKinds = {KafkaBroker: LabBroker}
"""Servers that are processes of this machine."""
_AnyServer = TypeVar("_AnyServer", bound=Server)


class LabStack(DevStack):
    """A stack with what only tests need; proxies end with this process, so it does, too."""

    def __init__(
        self,
        settings: LabStackSettings,
        lifetime: Lifetime = Lifetime.EMBEDDED,
        kinds: ServerKinds = EMBEDDED_KINDS,
    ) -> None:
        if settings.kafka_routes and lifetime is Lifetime.DETACHED:
            raise wrong_setting("kafka_routes", str(settings.kafka_routes), "none: proxies end with us")
        super().__init__(settings, lifetime)
        self._lab = settings
        self._kinds = kinds

    @property
    def kafka(self) -> LabBroker:
        return self._server(LabBroker)

    @property
    def second_kafka(self) -> SecondBroker:
        return self._server(SecondBroker)

    @property
    def _connect_bootstrap(self) -> str:
        is_routed = self.connect.name in self._lab.kafka_routes
        return self.kafka.bootstrap_over(self.connect.name) if is_routed else self.kafka.bootstrap

    def _make(self, kind: type[_AnyServer], *args: Any, **named: Any) -> _AnyServer:
        replaced: type[_AnyServer] = self._kinds.get(kind, kind)  # type: ignore[assignment]
        return super()._make(replaced, *args, **named)

    def _make_brokers(self, **named: Any) -> list[Server]:
        made = super()._make_brokers(**named, routes=self._lab.kafka_routes)
        if self._lab.second_kafka:
            made.append(self._make(SecondBroker, *made, **named, routes=self._lab.kafka_routes))
        return made
