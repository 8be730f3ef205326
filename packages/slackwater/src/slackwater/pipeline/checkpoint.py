"""The checkpoint of a pipeline: its identity, the meaning of its pipeline, and the store of its state.

The folder is on a disk of this machine, in HDFS, or in object storage. :mod:`slackwater.engine.state` defines
the state in it.
"""

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import orjson

from slackwater.engine.state.store import DRAFTS, StateStore, open_store
from slackwater.pipeline.spark_conf import given_conf
from slackwater.protocol import ConfigError, StateError, UnavailableError

Fingerprint = Mapping[str, Any]
"""What a state means, as the first run records it; see :func:`.definition.pipeline_fingerprint`.

Pipelines with equal fingerprints can continue each other."""
Change = tuple[str, str, str]
"""The name of a fact, its value in the checkpoint, and its value now. If the latter is empty, the former is a
sentence."""

STATE_VERSION: Final = "3"
"""The version of the state as a whole. Version 3 has segments and manifests."""
CHECKPOINT_FILE = "slackwater.json"
HOLD_FILE = "slackwater.lock"
CATALOGUE_FILE = "catalogue.json"
"""What the source's catalogue was when the pipeline began; see :mod:`.catalogue_check`."""
SPARK_HOME_FOLDER = "spark-home"
SPARK_LOG = "spark.log"
FOLDER_HINT = "name a folder in which the user of the run may write"

_COMPARED: Final = ("name", "source", "timeline", "scope", "emit", "buckets")
"""The facts that are compared by the names that users know."""
_NOT_THERE: Final = "no part of it"
_SPARK_QUERY = "metadata"
"""A file that Spark's own queries keep in their checkpoints."""
_LOCAL = "file:"
_S3A: Final = "s3a://"
"""The beginning of Hadoop's addresses in object storage."""
_S3A_SETTING: Final = "spark.hadoop.fs.s3a."


@dataclass(frozen=True, slots=True)
class CheckpointIdentity:
    """What the first run has recorded."""

    query_id: str
    """A random id that distinguishes this checkpoint from all others."""
    buckets: int
    """The number of buckets, which the first run may have chosen."""


class Checkpoint:
    """A checkpoint, which does not have to exist yet.

    Methods raise UnavailableError if its store does not answer, ConfigError if its address or Spark's
    configuration cannot be used, and StateError if it belongs to a pipeline with another meaning, or its
    record has another version or is not ours. The address is a path of this machine, or one of a file system;
    ``s3a://…`` is accessed as Spark is configured, and as the settings of the run override it.
    """

    def __init__(self, address: str, spark_conf: Mapping[str, str] | None = None) -> None:
        is_elsewhere = "://" in address or address.startswith(_LOCAL)
        # Executors may have another working folder.
        self.address = address if is_elsewhere else os.path.abspath(address)

        self._spark_conf = spark_conf or {}

    @cached_property
    def location(self) -> str:
        """The address with everything that is needed to access it; it may contain credentials."""
        if not self.address.startswith(_S3A):
            return self.address
        return s3_address(self.address, {**given_conf(os.environ), **self._spark_conf})

    @cached_property
    def store(self) -> StateStore:
        """The store of the state."""
        return open_store(self.location, self.address)

    @property
    def local_folder(self) -> Path | None:
        """The folder, if it is on a disk of this machine."""
        if self.address.startswith(_LOCAL):
            return Path("/" + self.address.removeprefix(_LOCAL).lstrip("/"))
        return None if "://" in self.address else Path(self.address)

    def fault_of_folder(self) -> str | None:
        """Returns why a folder of this machine cannot be used; None if it can, or is elsewhere."""
        folder = self.local_folder
        if folder is None:
            return None
        nearest = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        if not nearest.is_dir():
            return f"{nearest} is not a folder"
        return None if os.access(nearest, os.W_OK | os.X_OK) else f"{nearest} cannot be written"

    def identity(self) -> CheckpointIdentity | None:
        """Returns what the first run has recorded; None if there was none."""
        noted = self._noted()
        if noted is None or "query_id" not in noted:
            return None
        return CheckpointIdentity(str(noted["query_id"]), int(noted["buckets"]))

    def check(self, fingerprint: Fingerprint) -> None:
        """Refuses a pipeline that must not use this checkpoint; changes nothing."""
        if changes := self.changes(fingerprint):
            raise self._incompatible(changes, fingerprint["revision"])

    def changes(self, fingerprint: Fingerprint) -> tuple[Change, ...]:
        """Returns what has changed since the first run; empty if nothing has, or if there was none."""
        noted = self._noted()
        if noted is not None:
            return tuple(fingerprint_changes(noted, fingerprint))
        if self.store.read(_SPARK_QUERY) is not None:
            return (("its origin", "a Spark query of another kind", "a pipeline"),)
        return ()

    def claim(self, fingerprint: Fingerprint) -> CheckpointIdentity:
        """Records the pipeline in a new checkpoint; otherwise like :meth:`check`. Idempotent."""
        self.check(fingerprint)
        noted = {"query_id": str(uuid.uuid4()), **fingerprint}
        self.store.create(CHECKPOINT_FILE, orjson.dumps(noted, option=orjson.OPT_INDENT_2))
        self.check(fingerprint)  # what is there counts: elsewhere two runs may have created it
        identity = self.identity()
        if identity is None:
            raise self._incompatible((("its id", "", "is missing"),), fingerprint["revision"])
        return identity

    def remove(self) -> None:
        """Removes what a pipeline has written here; other files stay. It can be repeated after a kill."""
        from slackwater.engine.state.manifest import MANIFESTS, PUBLISHED, SEGMENTS
        from slackwater.outputs.function import PROGRESS_FILE

        for folder in (MANIFESTS, SEGMENTS, DRAFTS):
            self.store.delete([f"{folder}/{name}" for name in self.store.list(folder)])
        self.store.delete([PUBLISHED, PROGRESS_FILE, CATALOGUE_FILE])
        if (local := self.local_folder) is not None:
            shutil.rmtree(local / SPARK_HOME_FOLDER, ignore_errors=True)
            for name in (SPARK_LOG, HOLD_FILE):
                (local / name).unlink(missing_ok=True)
        self.store.delete([CHECKPOINT_FILE])  # at last: by it the rest is known to be the pipeline's
        if local is not None:
            for name in (MANIFESTS, SEGMENTS, DRAFTS, "."):
                with suppress(OSError):  # files of others are in it
                    os.rmdir(os.path.normpath(local / name))

    @contextmanager
    def hold(self, holder: str) -> Iterator[None]:
        """Holds an exclusive lock on the checkpoint during the block; the system releases it on a kill.

        It is for outputs that do not fence earlier runs themselves. A checkpoint that is not on a disk of
        this machine is not locked; its users must start only one run. Others who want the checkpoint in the
        meantime learn the name of the holder.

        Raises:
            UnavailableError: Another process holds it.
        """
        folder = self.local_folder
        if folder is None:
            yield
            return
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / HOLD_FILE).open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                in_use = f"{folder} is in use by {file.read().strip() or 'another process'}"
                raise UnavailableError(in_use, "stop it first") from error
            file.truncate(0)
            file.write(f"{holder} (process {os.getpid()})\n")
            file.flush()
            yield

    def _noted(self) -> dict[str, Any] | None:
        data = self.store.read(CHECKPOINT_FILE)
        if data is None:
            return None
        try:
            noted = orjson.loads(data)
        except ValueError as error:
            raise self._unreadable(str(error)) from error
        if not isinstance(noted, dict):
            raise self._unreadable("expected an object")
        return noted

    def _unreadable(self, problem: str) -> StateError:
        return StateError(
            f"{CHECKPOINT_FILE} in checkpoint {self.store.address} cannot be read: {problem}",
            "restore the checkpoint, or start with a new one",
        )

    def _incompatible(self, changes: Iterable[Change], revision: int) -> StateError:
        return StateError(
            f"checkpoint {self.store.address} no longer fits the pipeline: {listed_changes(changes)}",
            f"undo the change, or set `revision = {revision + 1}` in pipeline.toml: the changed pipeline "
            "then has its own checkpoint beside this one and its own output topics (change the topics that "
            "pipeline.toml names). `slackwater run DIR --copy-state-of OLD`, where OLD is the folder as it "
            "was, carries the rows over; without it, the views are built from the beginning of the source's "
            "topics. Readers of the old topics are not affected",
        )


def fingerprint_changes(before: Fingerprint, now: Fingerprint) -> Iterator[Change]:
    """Yields what has changed since a fingerprint, which may be of an earlier version."""
    if before.get("version") != STATE_VERSION:
        yield "the form of the state", str(before.get("version")), STATE_VERSION
        return
    changes = [
        (each, str(before.get(each)), now[each]) for each in _COMPARED if before.get(each) != now[each]
    ]
    for view in sorted({*before["views"], *now["views"]}):
        changes += _view_changes(view, before["views"].get(view), now["views"].get(view))
    if not changes and before["stages"] != now["stages"]:
        changes.append(("the stages", "", "are planned differently by this version"))
    yield from changes


def _view_changes(name: str, before: Fingerprint | None, now: Fingerprint | None) -> Iterator[Change]:
    if before is None or now is None:
        yield f"view {name}", "", "is gone" if now is None else "is new"
        return
    if before["topic"] != now["topic"]:
        yield f"output topic of view {name}", before["topic"], now["topic"]
    if before["fingerprint"] != now["fingerprint"]:
        facts, was = now["facts"], before.get("facts", {})
        changed = [fact for fact in sorted({*was, *facts}) if was.get(fact) != facts.get(fact)]
        yield f"view {name}", "", "has another " + ("meaning" if changed else "SQL")
        for fact in changed:
            yield fact, was.get(fact, _NOT_THERE), facts.get(fact, _NOT_THERE)


def listed_changes(changes: Iterable[Change]) -> str:
    """Returns a readable list of the changes of a pipeline."""
    return "; ".join(f"{name} was {was}, is {now}" if was else f"{name} {now}" for name, was, now in changes)


def s3_address(address: str, conf: Mapping[str, str]) -> str:
    """Returns an address for ``pyarrow.fs``, given one for Spark; it contains credentials if the settings do.

    Storage is thus configured once, for Spark. Settings are used that begin with ``spark.hadoop.fs.s3a.`` or,
    for this bucket alone, with ``spark.hadoop.fs.s3a.bucket.NAME.``, unless they concern how Hadoop's own
    connector works.

    Raises:
        ConfigError: The settings specify something that an address cannot express.
    """
    place = address.removeprefix(_S3A)
    bucket, slash, rest = place.partition("/")

    def find(name: str) -> str:
        return (
            conf.get(f"{_S3A_SETTING}bucket.{bucket}.{name}") or conf.get(f"{_S3A_SETTING}{name}") or ""
        ).strip()

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
