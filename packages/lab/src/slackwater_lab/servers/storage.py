"""Storage elsewhere: S3Proxy, which speaks S3 over a folder, and HDFS with one NameNode and one DataNode.

S3Proxy knows signatures, multipart uploads and listings. HDFS runs from the jars of Hadoop that PySpark has,
and one more.
"""

import http.client
import json
import os
import secrets
import subprocess
from abc import abstractmethod
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar
from urllib.request import urlopen

import pyspark

from slackwater.dev.java import (
    Collector,
    JarSet,
    JavaProgram,
    JavaServer,
    Properties,
    cache_folder,
    find_java,
    render_properties,
    resolve_pinned,
)
from slackwater.dev.processes import Launch, failed_start, not_running
from slackwater.dev.server import LOOPBACK, Server, accepts_connections

_S3_JARS = resources.files("slackwater_lab.servers") / "data" / "s3proxy"
_HEAP = "96m"
_SECRET_BYTES = 20


class ObjectStore(JavaServer):
    """Object storage that asks who is there; it has one bucket, and what it keeps survives a restart."""

    name: ClassVar[str] = "s3"
    bucket: ClassVar[str] = "state"
    access_key: ClassVar[str] = "slackwater"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.secret_key = secrets.token_urlsafe(_SECRET_BYTES)

    @property
    def address(self) -> str:
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
        jars = resolve_pinned(_S3_JARS, cache_folder() / "s3proxy", self.progress)
        self.version = jars.version_of("s3proxy")
        self._program = JavaProgram(
            java=find_java(),
            jars=jars,
            main="org.gaul.s3proxy.Main",
            heap=_HEAP,
            collector=Collector.SERIAL,
            options=("-XX:TieredStopAtLevel=1", f"-Dlogback.configurationFile={_S3_JARS / 'logback.xml'}"),
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


_HDFS_JARS = resources.files("slackwater_lab.servers") / "data" / "hdfs"
_SERVERS = "org.apache.hadoop.hdfs.server"
_LIBRARIES = (
    "hadoop-client-api-*.jar",
    "hadoop-client-runtime-*.jar",
    "jcl-*.jar",
    "log4j-*.jar",
    "slf4j-*.jar",
)
"""What the servers need of PySpark's jars."""
_FORMAT_SECONDS = 300.0
_LIVE_NODES = "Hadoop:service=NameNode,name=FSNamesystemState::NumLiveDataNodes"


class _HadoopServer(Server):
    """A process of Hadoop, with a configuration of its own."""

    _jars: JarSet | None = None

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def _home(self) -> Path:
        return self.folder / self.name

    @abstractmethod
    def _conf(self) -> Mapping[str, str]:
        """Returns Hadoop's settings."""

    def _prepare(self) -> None:
        self._jars = resolve_pinned(_HDFS_JARS, cache_folder() / "hdfs", self.progress)
        self.version = self._jars.version_of("hadoop-client-minicluster")
        self._home().mkdir(parents=True, exist_ok=True)
        lines = (
            f"<property><name>{name}</name><value>{value}</value></property>"
            for name, value in self._conf().items()
        )
        (self._home() / "hdfs-site.xml").write_text(f"<configuration>{''.join(lines)}</configuration>\n")

    def _java(self, main: str, *arguments: str) -> tuple[str, ...]:
        if self._jars is None:
            raise not_running(self.name, "launch")
        classpath = os.pathsep.join((str(self._home()), self._jars.classpath, *_pyspark_jars()))
        options = (f"-Xmx{_HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classpath)
        return (str(find_java().path), *options, f"{_SERVERS}.{main}", *arguments)

    def _is_ready(self) -> bool:
        return accepts_connections(self.port)


class NameNode(_HadoopServer):
    """Keeps the names of files; what is written survives a restart. It asks nobody who they are."""

    name: ClassVar[str] = "namenode"

    @property
    def url(self) -> str:
        return f"hdfs://{self.address}"

    def _conf(self) -> Mapping[str, str]:
        return {
            "fs.defaultFS": self.url,
            "dfs.namenode.rpc-address": self.address,
            "dfs.namenode.http-address": f"{LOOPBACK}:{self._port('web')}",
            "dfs.namenode.name.dir": f"file://{self._home() / 'name'}",
            "dfs.namenode.safemode.extension": "0",
            "dfs.replication": "1",
        }

    def _prepare(self) -> None:
        super()._prepare()
        if (self._home() / "name").exists():
            return
        format_it = self._java("namenode.NameNode", "-format", "-nonInteractive")
        done = subprocess.run(
            format_it, cwd=self._home(), capture_output=True, text=True, timeout=_FORMAT_SECONDS, check=False
        )
        if done.returncode != 0:
            words = done.stdout + done.stderr
            raise failed_start(self.name, "its folder cannot be formatted", self.log_path, words)

    def _launch(self) -> Launch:
        return Launch(argv=self._java("namenode.NameNode"), cwd=self._home())

    def count_data_nodes(self) -> int:
        """Returns how many report to it; 0 while it does not answer. Blocks a second at most."""
        found = ask_json(self._port("web"), f"/jmx?get={_LIVE_NODES}")
        return sum(int(bean["NumLiveDataNodes"]) for bean in found.get("beans", ()))


class DataNode(_HadoopServer):
    """Keeps the contents of files."""

    name: ClassVar[str] = "datanode"

    def __init__(self, folder: Path, *, name_node: NameNode) -> None:
        super().__init__(folder)
        self._name_node = name_node

    def _conf(self) -> Mapping[str, str]:
        return {
            "fs.defaultFS": self._name_node.url,
            "dfs.datanode.address": self.address,
            "dfs.datanode.hostname": LOOPBACK,
            "dfs.datanode.http.address": f"{LOOPBACK}:0",
            "dfs.datanode.ipc.address": f"{LOOPBACK}:0",
            "dfs.datanode.data.dir": f"file://{self._home() / 'data'}",
        }

    def _launch(self) -> Launch:
        return Launch(argv=self._java("datanode.DataNode"), cwd=self._home())

    def _is_ready(self) -> bool:
        return super()._is_ready() and self._name_node.count_data_nodes() > 0


def ask_json(port: int, path: str) -> dict[str, Any]:
    """Returns the document that a server of this machine has there; empty without an answer in a second."""
    try:
        with urlopen(f"http://{LOOPBACK}:{port}{path}", timeout=1.0) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except (OSError, http.client.HTTPException, ValueError):
        return {}


def _pyspark_jars() -> list[str]:
    folder = Path(pyspark.__file__).parent / "jars"
    return [str(jar) for pattern in _LIBRARIES for jar in sorted(folder.glob(pattern))]
