"""S3Proxy: a server that speaks S3 over a folder, with signatures, multipart uploads and listings."""

import secrets
from importlib import resources
from pathlib import Path
from typing import ClassVar

from slackwater.dev.java import (
    Collector,
    JavaProgram,
    JavaServer,
    Properties,
    cache_folder,
    find_java,
    render_properties,
    resolve_pinned,
)
from slackwater.dev.server import LOOPBACK, accepts_connections

_PINNED = resources.files("slackwater_lab.servers") / "data" / "s3proxy"
_HEAP = "96m"
_SECRET_BYTES = 20


class ObjectStore(JavaServer):
    """Object storage that asks who is there; it has one bucket, and what it keeps survives a restart.

    Args:
        folder: Data and logs.
    """

    name: ClassVar[str] = "s3"
    bucket: ClassVar[str] = "state"
    access_key: ClassVar[str] = "slackwater"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.secret_key = secrets.token_urlsafe(_SECRET_BYTES)

    @property
    def address(self) -> str:
        """``http://`` URL of the server."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def objects(self) -> Path:
        """The folder that has a file for each object of the bucket."""
        return self._folder() / "buckets" / self.bucket

    def environment(self) -> dict[str, str]:
        """Returns the variables by which every tool of AWS finds it, and says who it is."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
        }

    def spark_conf(self) -> dict[str, str]:
        """Returns the settings by which Hadoop's connector finds it, and says who it is."""
        return {
            "spark.hadoop.fs.s3a.endpoint": self.address,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.access.key": self.access_key,
            "spark.hadoop.fs.s3a.secret.key": self.secret_key,
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }

    def _prepare(self) -> None:
        jars = resolve_pinned(_PINNED, cache_folder() / "s3proxy", self.progress)
        self.version = jars.version_of("s3proxy")
        self._program = JavaProgram(
            java=find_java(),
            jars=jars,
            main="org.gaul.s3proxy.Main",
            heap=_HEAP,
            collector=Collector.SERIAL,
            options=("-XX:TieredStopAtLevel=1", f"-Dlogback.configurationFile={_PINNED / 'logback.xml'}"),
        )
        self.objects.mkdir(parents=True, exist_ok=True)
        properties: Properties = {
            "s3proxy.endpoint": self.address,
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": self.access_key,
            "s3proxy.credential": self.secret_key,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": str(self.objects.parent),
        }
        file = self._properties()
        file.touch(mode=0o600)
        file.write_text(render_properties(properties))

    def _arguments(self) -> tuple[str, ...]:
        return "--properties", str(self._properties())

    def _properties(self) -> Path:
        return self._folder() / "s3proxy.properties"

    def _is_ready(self) -> bool:
        return accepts_connections(self.port)
