"""The store of a checkpoint in HDFS. For its contract, see :mod:`slackwater.engine.state.store`."""

import uuid
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from slackwater.engine.state.store import DRAFTS, missing_file, without_credentials, wrong_answer
from slackwater.protocol import ConfigError

HDFS: Final = "hdfs://"
"""The beginning of the addresses of such stores."""
_FAILURES: Final = (OSError, RuntimeError)
"""The errors that the client raises. Answers of a server that have no class of their own are
RuntimeErrors."""
_PERMISSION: Final = 0o700
"""The permission of folders, because segments contain rows of the source."""


class HadoopStore:
    """A folder of HDFS. A file is renamed into place when all DataNodes have it on their disks.

    Args:
        address: ``hdfs://host:port/folder``, or ``hdfs://nameservice/folder`` with a name service of
            ``HADOOP_CONF_DIR``.

    Raises:
        ConfigError: The address does not belong to a known cluster.
    """

    def __init__(self, address: str) -> None:
        from hdfs_native import Client

        self.address = without_credentials(address)
        """The address for messages, without credentials."""
        parts = urlsplit(address)
        self._folder = PurePosixPath(parts.path or "/")
        try:
            self._client = Client(f"{HDFS}{parts.netloc}")
        except (*_FAILURES, ValueError) as error:
            raise ConfigError(f"checkpoint {self.address}: {error}") from error

    def read(self, name: str) -> bytes | None:
        """See :class:`StateStore`."""
        try:
            with self._client.read(self._path(name)) as file:
                return bytes(file.readall())
        except FileNotFoundError:
            return None
        except _FAILURES as error:
            raise wrong_answer(self.address, "read", name, error) from error

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        """See :class:`StateStore`."""
        try:
            with self._client.read(self._path(name)) as file:
                there = max(0, min(length, len(file) - offset))
                return bytes(file.read_range(offset, there)) if there else b""
        except FileNotFoundError as error:
            raise missing_file(self.address, name) from error
        except _FAILURES as error:
            raise wrong_answer(self.address, "read", name, error) from error

    def create(self, name: str, data: bytes) -> bool:
        """See :class:`StateStore`; exactly one of several succeeds."""
        try:
            self._write(name, data, may_replace=False)
        except FileExistsError:
            return False
        except _FAILURES as error:
            raise wrong_answer(self.address, "written", name, error) from error
        return True

    def write(self, name: str, data: bytes) -> None:
        """See :class:`StateStore`."""
        try:
            self._write(name, data, may_replace=True)
        except _FAILURES as error:
            raise wrong_answer(self.address, "written", name, error) from error

    def list(self, folder: str) -> list[str]:
        """See :class:`StateStore`."""
        try:
            found = list(self._client.list_status(self._path(folder)))
        except FileNotFoundError:
            return []
        except _FAILURES as error:
            raise wrong_answer(self.address, "listed", folder, error) from error
        return [PurePosixPath(each.path).name for each in found if not each.isdir]

    def delete(self, names: Iterable[str]) -> None:
        """See :class:`StateStore`."""
        for name in names:
            try:
                self._client.delete(self._path(name))
            except FileNotFoundError:
                continue
            except _FAILURES as error:
                raise wrong_answer(self.address, "deleted", name, error) from error

    def _path(self, name: str) -> str:
        return str(self._folder / name)

    def _write(self, name: str, data: bytes, *, may_replace: bool) -> None:
        path, draft = self._path(name), self._path(f"{DRAFTS}/{uuid.uuid4().hex}")
        for folder in (draft, path):
            parent = str(PurePosixPath(folder).parent)
            self._client.mkdirs(parent, permission=_PERMISSION, create_parent=True)
        with self._client.create(draft) as file:
            file.write(data)
            file.hsync()
        try:
            self._client.rename(draft, path, overwrite=may_replace)
        except _FAILURES:
            self._client.delete(draft)
            raise
