"""How a listener of the broker finds out who a client is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

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

        Args:
            keys: The broker's key and its certificate, in one PEM file.
            authority: The certificate that clients' have to be signed by, in PEM.
            wants_certificate: Whether clients have to show one; the user then is its common name.
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
        return ListenerSecurity(
            protocol=protocol, properties={**self.properties, **files}, allowed_url=self.allowed_url
        )


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
    """Returns what a listener needs at which users show signed tokens (SASL/OAUTHBEARER).

    Args:
        keys_url: Where the keys are that tokens are signed with (JWKS).
        issuer: Who has made them.
        audience: Whom they are for.
    """
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
    return ListenerSecurity(protocol=found.protocol, properties=properties, allowed_url=keys_url)


def _sasl(mechanism: str, login: str) -> ListenerSecurity:
    properties = {
        "sasl.enabled.mechanisms": mechanism,
        f"{mechanism.lower()}.sasl.jaas.config": login,
    }
    return ListenerSecurity(protocol="SASL_PLAINTEXT", properties=properties)
