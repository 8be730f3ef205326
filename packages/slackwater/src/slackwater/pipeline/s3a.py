"""Converts Hadoop's addresses ``s3a://…`` for ``pyarrow.fs``, so that storage is configured once, for Spark.

Only settings for the server and the credentials are used. All other settings concern how Hadoop's own
connector works.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode

from slackwater.protocol import ConfigError

S3A: Final = "s3a://"
"""The beginning of such an address."""

_PREFIX: Final = "spark.hadoop.fs.s3a."


def s3_address(address: str, conf: Mapping[str, str]) -> str:
    """Returns an address for ``pyarrow.fs``; it contains credentials if the settings do.

    Args:
        address: ``s3a://bucket/folder``.
        conf: Spark settings. Those are used that begin with ``spark.hadoop.fs.s3a.`` or, for this bucket
            alone, with ``spark.hadoop.fs.s3a.bucket.NAME.``.

    Raises:
        ConfigError: The settings specify something that an address cannot express.
    """
    place = address.removeprefix(S3A)
    bucket, slash, rest = place.partition("/")

    def find(name: str) -> str:
        return (conf.get(f"{_PREFIX}bucket.{bucket}.{name}") or conf.get(f"{_PREFIX}{name}") or "").strip()

    if find("session.token"):
        raise ConfigError(
            f"checkpoint {address}: fs.s3a.session.token is set, but cannot be part of an address",
            "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN in the environment of "
            "drivers and executors, and remove fs.s3a.access.key, .secret.key and .session.token",
        )
    access, secret = find("access.key"), find("secret.key")
    scheme, _, server = find("endpoint").rpartition("://")
    if not scheme and find("connection.ssl.enabled").lower() == "false":
        scheme = "http"
    query = {"endpoint_override": server, "scheme": scheme, "region": find("endpoint.region")}
    given = urlencode({name: value for name, value in query.items() if value})
    credentials = f"{quote(access, safe='')}:{quote(secret, safe='')}@" if access and secret else ""
    mark = "&" if "?" in rest else "?"
    return f"s3://{credentials}{bucket}{slash}{rest}{mark if given else ''}{given}"
