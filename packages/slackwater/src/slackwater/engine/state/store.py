"""The store of a checkpoint: files that are written once, completely or not at all, and never modified.

``pyarrow.fs`` provides one implementation for local disks and object storage; HDFS has another one. The only
requirement on a store is that a file can be read once the write has returned.
"""

import os
import re
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final, Protocol
from urllib.parse import urlsplit

from slackwater.protocol import ConfigError, StateError, UnavailableError

DRAFTS: Final = ".drafts"
"""A folder beside the files, so that a listing does not contain unfinished files."""

_CREDENTIALS: Final = re.compile(r"(?<=://)[^\s'\"?]*@")
"""Matches up to the last ``@``, because secret keys may contain slashes, and an unquoted one leads to an
error that would show it."""

_HDFS: Final = "hdfs://"
_HDFS_FAILURES: Final = (OSError, RuntimeError)
"""The errors that HDFS's client raises. Answers of a server that have no class of their own are
RuntimeErrors."""
_PERMISSION: Final = 0o700
"""The permission of folders, because segments contain rows of the source."""


class StateStore(Protocol):
    """Stores files by name. A name may contain folders, separated by ``/``."""

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file; None if it does not exist.

        Raises:
            UnavailableError: The store does not answer.
        """

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        """Returns a part of a file; it is shorter if the file ends there.

        Raises:
            StateError: The file does not exist.
            UnavailableError: The store does not answer.
        """

    def write(self, name: str, data: bytes) -> None:
        """Writes a file, completely or not at all; afterwards it survives a failure of the machine.

        Raises:
            UnavailableError: It could not be written.
        """

    def create(self, name: str, data: bytes) -> bool:
        """Writes a file like :meth:`write`, unless it exists; returns False if it does.

        If the store has no means to prevent it, two processes that create a file at the same time may both
        succeed.

        Raises:
            UnavailableError: It could not be written.
        """

    def list(self, folder: str) -> list[str]:
        """Returns the names of the files in a folder, in no order; none if the folder does not exist.

        Raises:
            UnavailableError: The store does not answer.
        """

    def delete(self, names: Iterable[str]) -> None:
        """Removes files. Files that do not exist are not an error.

        Raises:
            UnavailableError: The store does not answer.
        """


class ArrowStore:
    """A folder of a file system that ``pyarrow.fs`` supports.

    Args:
        address: A path of this machine, or an address such as ``file:///…`` or ``s3://…``.
        shown: The address to show in messages; None for the same.

    Raises:
        ConfigError: The address belongs to no supported file system.
    """

    def __init__(self, address: str, shown: str | None = None) -> None:
        # Workers import this module to process a bucket; the libraries of file systems take a while.
        from pyarrow import fs

        self.address = without_credentials(address if shown is None else shown)
        """The address for messages, without credentials."""
        is_address = "://" in address or address.startswith("file:")
        try:
            self._files, path = fs.FileSystem.from_uri(
                _in_one_request(address) if is_address else os.path.abspath(address)
            )
        except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors, too
            reason = without_credentials(str(error))
            raise ConfigError(
                f"checkpoint {self.address}: {reason}; expected a local folder, or an address: "
                "file://, hdfs://, s3:// or gs://"
            ) from error
        self._folder = PurePosixPath(path)
        self._is_local = isinstance(self._files, fs.LocalFileSystem)

    def read(self, name: str) -> bytes | None:
        """See :class:`StateStore`."""
        try:
            with self._files.open_input_file(self._path(name)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise wrong_answer(self.address, "read", name, error) from error

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        """See :class:`StateStore`."""
        try:
            with self._files.open_input_file(self._path(name)) as file:
                # Some file systems refuse to read behind the end, which says that they do not answer.
                return bytes(file.read_at(length, offset)) if offset < file.size() else b""
        except FileNotFoundError as error:
            raise missing_file(self.address, name) from error
        except OSError as error:
            raise wrong_answer(self.address, "read", name, error) from error

    def create(self, name: str, data: bytes) -> bool:
        """See :class:`StateStore`. On a local disk, exactly one of several processes succeeds."""
        if self._is_local:
            try:
                self._write_locally(name, data, os.link)
            except FileExistsError:
                return False
            except OSError as error:
                raise wrong_answer(self.address, "written", name, error) from error
            return True
        if self.read(name) is not None:
            return False
        self.write(name, data)
        return True

    def write(self, name: str, data: bytes) -> None:
        """See :class:`StateStore`."""
        try:
            if self._is_local:
                self._write_locally(name, data, os.rename)
            else:
                path = self._path(name)
                # Only an object store makes a file visible at its end; elsewhere a folder must be there.
                if self._files.type_name != "s3":
                    self._files.create_dir(str(PurePosixPath(path).parent), recursive=True)
                with self._files.open_output_stream(path) as file:
                    file.write(data)
        except OSError as error:
            raise wrong_answer(self.address, "written", name, error) from error

    def list(self, folder: str) -> list[str]:
        """See :class:`StateStore`."""
        from pyarrow import fs

        try:
            found = self._files.get_file_info(fs.FileSelector(self._path(folder), allow_not_found=True))
        except OSError as error:
            raise wrong_answer(self.address, "listed", folder, error) from error
        return [each.base_name for each in found if each.type == fs.FileType.File]

    def delete(self, names: Iterable[str]) -> None:
        """See :class:`StateStore`."""
        for name in names:
            try:
                self._files.delete_file(self._path(name))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise wrong_answer(self.address, "deleted", name, error) from error

    def _path(self, name: str) -> str:
        return str(self._folder / name)

    def _write_locally(self, name: str, data: bytes, place: Callable[[str, str], None]) -> None:
        path = self._path(name)
        folder, drafts = os.path.dirname(path), str(self._folder / DRAFTS)
        draft = os.path.join(drafts, uuid.uuid4().hex)
        try:
            descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileNotFoundError:
            _make_folder(drafts)
            descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                place(draft, path)
            except FileNotFoundError:
                _make_folder(folder)
                place(draft, path)
        finally:
            with suppress(FileNotFoundError):  # a rename has taken it
                os.unlink(draft)
        _sync_folder(folder)


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
            self._client = Client(f"{_HDFS}{parts.netloc}")
        except (*_HDFS_FAILURES, ValueError) as error:
            raise ConfigError(f"checkpoint {self.address}: {error}") from error

    def read(self, name: str) -> bytes | None:
        """See :class:`StateStore`."""
        try:
            with self._client.read(self._path(name)) as file:
                return bytes(file.readall())
        except FileNotFoundError:
            return None
        except _HDFS_FAILURES as error:
            raise wrong_answer(self.address, "read", name, error) from error

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        """See :class:`StateStore`."""
        try:
            with self._client.read(self._path(name)) as file:
                there = max(0, min(length, len(file) - offset))
                return bytes(file.read_range(offset, there)) if there else b""
        except FileNotFoundError as error:
            raise missing_file(self.address, name) from error
        except _HDFS_FAILURES as error:
            raise wrong_answer(self.address, "read", name, error) from error

    def create(self, name: str, data: bytes) -> bool:
        """See :class:`StateStore`; exactly one of several succeeds."""
        try:
            self._write(name, data, may_replace=False)
        except FileExistsError:
            return False
        except _HDFS_FAILURES as error:
            raise wrong_answer(self.address, "written", name, error) from error
        return True

    def write(self, name: str, data: bytes) -> None:
        """See :class:`StateStore`."""
        try:
            self._write(name, data, may_replace=True)
        except _HDFS_FAILURES as error:
            raise wrong_answer(self.address, "written", name, error) from error

    def list(self, folder: str) -> list[str]:
        """See :class:`StateStore`."""
        try:
            found = list(self._client.list_status(self._path(folder)))
        except FileNotFoundError:
            return []
        except _HDFS_FAILURES as error:
            raise wrong_answer(self.address, "listed", folder, error) from error
        return [PurePosixPath(each.path).name for each in found if not each.isdir]

    def delete(self, names: Iterable[str]) -> None:
        """See :class:`StateStore`."""
        for name in names:
            try:
                self._client.delete(self._path(name))
            except FileNotFoundError:
                continue
            except _HDFS_FAILURES as error:
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
        except _HDFS_FAILURES:
            self._client.delete(draft)
            raise


def open_store(address: str, shown: str | None = None) -> ArrowStore | HadoopStore:
    """Returns the store at an address; see :class:`ArrowStore` for the arguments and errors."""
    return HadoopStore(address) if address.startswith(_HDFS) else ArrowStore(address, shown)


class MemoryStore:
    """A store in the memory of this process, for tests, and for a pipeline that stores nothing."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        """See :class:`StateStore`."""
        return self.files.get(name)

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        """See :class:`StateStore`."""
        if name not in self.files:
            raise missing_file("in memory", name)
        return self.files[name][offset : offset + length]

    def create(self, name: str, data: bytes) -> bool:
        """See :class:`StateStore`."""
        if name in self.files:
            return False
        self.write(name, data)
        return True

    def write(self, name: str, data: bytes) -> None:
        """See :class:`StateStore`."""
        self.files[name] = data

    def list(self, folder: str) -> list[str]:
        """See :class:`StateStore`."""
        prefix = f"{folder}/" if folder else ""
        names = (name.removeprefix(prefix) for name in self.files if name.startswith(prefix))
        return [name for name in names if "/" not in name]

    def delete(self, names: Iterable[str]) -> None:
        """See :class:`StateStore`."""
        for name in names:
            self.files.pop(name, None)


def _in_one_request(address: str) -> str:
    """Makes object storage accept a small file in one request, instead of three for an upload."""
    if not address.startswith("s3://") or "allow_delayed_open" in address:
        return address
    return f"{address}{'&' if '?' in address else '?'}allow_delayed_open=true"


def without_credentials(text: str) -> str:
    """Returns an address, or an error that contains one, without credentials."""
    return _CREDENTIALS.sub("***@", text)


def wrong_answer(address: str, what: str, name: str, error: Exception) -> UnavailableError:
    """Returns the error for a store that does not do what was requested.

    Args:
        address: The address of the store, without credentials.
        what: The participle, such as ``read``.
        name: The name of the file; empty for the folder.
        error: The cause.
    """
    return UnavailableError(
        f"checkpoint {address}: {name or 'the folder'} cannot be {what}: {without_credentials(str(error))}. "
        "Nothing is lost: start again when the checkpoint's file system works"
    )


def missing_file(address: str, name: str) -> StateError:
    """Returns the error for a file that the state names and that does not exist."""
    return StateError(
        f"checkpoint {address} has no file {name}, which the state needs; restore the checkpoint or start "
        "with a new one"
    )


def _make_folder(folder: str) -> None:
    """Creates a folder and its parents, each of which survives a failure of the machine."""
    above = os.path.dirname(folder)
    if not os.path.isdir(above):
        _make_folder(above)
    with suppress(FileExistsError):
        os.mkdir(folder, mode=_PERMISSION)
    _sync_folder(above)


def _sync_folder(folder: str) -> None:
    """Ensures that the entries of a folder survive a failure of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
