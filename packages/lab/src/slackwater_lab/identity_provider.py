"""An identity provider for tests: clients that know their secret get signed tokens, as by OpenID Connect."""

import base64
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from slackwater.protocol import SystemClock

LIFETIME_SECONDS = 3600
_KEY_ID = "key-of-the-test"


class IdentityProvider:
    """Answers the client credentials grant, and tells with which key tokens are signed.

    Args:
        clients: Secret by client; a token's subject is its client.
        audience: Whom tokens are for.
    """

    def __init__(self, clients: Mapping[str, str], audience: str) -> None:
        self.audience = audience
        self._clients = dict(clients)
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answers no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def issuer(self) -> str:
        """Who makes the tokens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def token_url(self) -> str:
        """Where clients get tokens."""
        return f"{self.issuer}/token"

    @property
    def keys_url(self) -> str:
        """Where the key is (JWKS)."""
        return f"{self.issuer}/keys"

    def answer(self, path: str, authorization: str, form: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """Returns status and content of an answer."""
        if path == "/keys":
            return 200, {"keys": [self._public_key()]}
        client, secret = _credentials(authorization, form)
        if path != "/token" or not secret or self._clients.get(client) != secret:
            return 401, {"error": "invalid_client"}
        token = self._token(client)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": LIFETIME_SECONDS}

    def _public_key(self) -> dict[str, str]:
        numbers = self._key.public_key().public_numbers()
        return {
            "kty": "RSA",
            "use": "sig",
            "alg": "RS256",
            "kid": _KEY_ID,
            "n": _encoded(numbers.n.to_bytes((numbers.n.bit_length() + 7) // 8)),
            "e": _encoded(numbers.e.to_bytes(3)),
        }

    def _token(self, client: str) -> str:
        now = int(SystemClock().now().timestamp())
        claims = {
            "iss": self.issuer,
            "aud": self.audience,
            "sub": client,
            "iat": now,
            "exp": now + LIFETIME_SECONDS,
        }
        head = {"alg": "RS256", "typ": "JWT", "kid": _KEY_ID}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (head, claims))
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_encoded(signature)}"


def _credentials(authorization: str, form: Mapping[str, str]) -> tuple[str, str]:
    if not authorization.startswith("Basic "):
        return form.get("client_id", ""), form.get("client_secret", "")
    client, _, secret = base64.b64decode(authorization[6:]).decode().partition(":")
    return unquote(client), unquote(secret)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _handler(provider: IdentityProvider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            form = {name: texts[0] for name, texts in parse_qs(self.rfile.read(length).decode()).items()}
            status, content = provider.answer(self.path, self.headers.get("Authorization", ""), form)
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
