"""Secrets in texts: recognised by the names of options, and hidden wherever a text leaves a process."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

HIDDEN: Final = "********"
_SHORTEST: Final = 4
"""Shorter secrets are not hidden: hiding every ``x`` would reveal more about a secret than it conceals."""
_NAMES: Final = re.compile(
    r"secret|password|passwd|credential|access[._-]?key|account[._-]?key|jaas|[.]pem$|oauthbearer[.]config"
    r"|(?<!public)[._-]key$|[._-]token$|^token$",
    re.IGNORECASE,
)


def secret_options(options: Mapping[str, str]) -> frozenset[str]:
    """Returns the secrets in options of Kafka, Spark and lakes.

    These are the values of options whose names denote secrets, and the passwords in addresses.
    """
    named = {value for name, value in options.items() if _NAMES.search(name) and "://" not in value}
    return frozenset(named).union(*map(address_secrets, options.values()))


def address_secrets(address: str) -> frozenset[str]:
    """Returns the passwords in an address, as written and decoded."""
    if "://" not in address:
        return frozenset()
    try:
        parts = urlsplit(address)
        written = [parts.password, *(value for name, value in parse_qsl(parts.query) if _NAMES.search(name))]
    except ValueError:
        return frozenset({address})
    return frozenset(form for each in written if each for form in (each, unquote(each)))


def hide(text: str, secrets: Iterable[str]) -> str:
    """Returns a text without secrets, including their forms in JSON, in addresses and in Python literals.

    Args:
        text: A text such as the message of an error.
        secrets: What it must not contain; secrets of fewer than four characters are not removed.
    """
    forms = {form for secret in secrets if len(secret) >= _SHORTEST for form in _forms(secret)}
    for form in sorted(forms, key=len, reverse=True):
        if form in text:
            text = text.replace(form, HIDDEN)
    return text


def _forms(secret: str) -> tuple[str, ...]:
    return (
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        quote(secret, safe=""),
        repr(secret)[1:-1],
    )
