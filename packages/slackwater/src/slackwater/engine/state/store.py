"""The store of a checkpoint: files that are written once, completely or not at all, and never modified.

``pyarrow.fs`` provides one implementation for local disks and object storage; HDFS has another one. The only
requirement on a store is that a file can be read once the write has returned.
"""

import os
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import ClassVar, Final
from urllib.parse import urlsplit

from slackwater.protocol import ConfigError, StateError, UnavailableError

DRAFTS: Final = ".drafts"
"""A folder beside the files, so that a listing does not contain unfinished files."""

_CREDENTIALS: Final = re.compile(r"(?<=://)[^\s'\"?]*@")
"""Matches up to the last ``@``, because secret keys may contain slashes, and an unquoted one leads to an
error that would show it."""

_HDFS: Final = "hdfs://"
_PERMISSION: Final = 0o700
"""The permission of folders, because segments contain rows of the source."""

Names = list[str]
"""The class of stores has a method with the name of lists."""


class StateStore(ABC):
    """Stores files by name. A name may contain folders, separated by ``/``.

    Every method raises :class:`UnavailableError` if the store does not answer, or does not do it. A file
    system implements the methods with an underscore, which get paths and raise its own errors.
    """

    _failures: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    """The errors that the file system's client raises."""

    def __init__(self, address: str, folder: str) -> None:
        self.address = without_credentials(address)
        """The address for messages, without credentials."""
        self._folder = PurePosixPath(folder)

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file; None if it does not exist."""
        with self._answering("read", name):
            try:
                return self._read(self._path(name))
            except FileNotFoundError:
                return None

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        """Returns a part of a file; it is shorter if the file ends there.

        Raises:
            StateError: The file does not exist.
        """
        with self._answering("read", name):
            try:
                return self._read_part(self._path(name), offset, length)
            except FileNotFoundError as error:
                raise missing_file(self.address, name) from error

    def write(self, name: str, data: bytes) -> None:
        """Writes a file, completely or not at all; afterwards it survives a failure of the machine."""
        with self._answering("written", name):
            self._write(self._path(name), data)

    def create(self, name: str, data: bytes) -> bool:
        """Writes a file like :meth:`write`, unless it exists; returns False if it does.

        If the store has no means to prevent it, two processes that create a file at the same time may both
        succeed.
        """
        with self._answering("written", name):
            try:
                self._create(self._path(name), data)
            except FileExistsError:
                return False
            return True

    def list(self, folder: str) -> list[str]:
        """Returns the names of the files in a folder, in no order; none if the folder does not exist."""
        with self._answering("listed", folder):
            return self._list(self._path(folder))

    def delete(self, names: Iterable[str]) -> None:
        """Removes files. Files that do not exist are not an error."""
        for name in names:
            with self._answering("deleted", name), suppress(FileNotFoundError):
                self._delete(self._path(name))

    def _path(self, name: str) -> str:
        return str(self._folder / name)

    @contextmanager
    def _answering(self, what: str, name: str) -> Iterator[None]:
        """Turns an error of the file system into one that says what cannot be done, such as ``read``."""
        try:
            yield
        except self._failures as error:
            raise UnavailableError(
                f"checkpoint {self.address}: {name or 'the folder'} cannot be {what}: "
                f"{without_credentials(str(error))}. "
                "Nothing is lost: start again when the checkpoint's file system works"
            ) from error

    @abstractmethod
    def _read(self, path: str) -> bytes: ...

    @abstractmethod
    def _read_part(self, path: str, offset: int, length: int) -> bytes: ...

    @abstractmethod
    def _write(self, path: str, data: bytes) -> None: ...

    @abstractmethod
    def _create(self, path: str, data: bytes) -> None:
        """Raises ``FileExistsError`` if the file exists."""

    @abstractmethod
    def _list(self, path: str) -> Names: ...

    @abstractmethod
    def _delete(self, path: str) -> None: ...


class ArrowStore(StateStore):
    """A folder of a file system that ``pyarrow.fs`` supports, by a path or an address.

    Messages show another address on request.

    Raises:
        ConfigError: The address belongs to no supported file system.
    """

    def __init__(self, address: str, shown: str | None = None) -> None:
        # Workers import this module to process a bucket; the libraries of file systems take a while.
        from pyarrow import fs

        shown = address if shown is None else shown
        is_address = "://" in address or address.startswith("file:")
        try:
            self._files, path = fs.FileSystem.from_uri(
                _in_one_request(address) if is_address else os.path.abspath(address)
            )
        except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors, too
            raise ConfigError(
                f"checkpoint {without_credentials(f'{shown}: {error}')}; expected a local folder, or an "
                "address: file://, hdfs://, s3:// or gs://"
            ) from error
        super().__init__(shown, path)
        self._is_local = isinstance(self._files, fs.LocalFileSystem)

    def _read(self, path: str) -> bytes:
        with self._files.open_input_file(path) as file:
            return bytes(file.read())

    def _read_part(self, path: str, offset: int, length: int) -> bytes:
        with self._files.open_input_file(path) as file:
            # Some file systems refuse to read behind the end, which says that they do not answer.
            return bytes(file.read_at(length, offset)) if offset < file.size() else b""

    def _create(self, path: str, data: bytes) -> None:
        """On a local disk, exactly one of several processes succeeds."""
        if self._is_local:
            self._write_locally(path, data, os.link)
            return
        try:
            self._read(path)
        except FileNotFoundError:
            self._write(path, data)
        else:
            raise FileExistsError(path)

    def _write(self, path: str, data: bytes) -> None:
        if self._is_local:
            self._write_locally(path, data, os.rename)
            return
        # Only an object store makes a file visible at its end; elsewhere a folder must be there.
        if self._files.type_name != "s3":
            self._files.create_dir(str(PurePosixPath(path).parent), recursive=True)
        with self._files.open_output_stream(path) as file:
            file.write(data)

    def _list(self, path: str) -> Names:
        from pyarrow import fs

        found = self._files.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return [each.base_name for each in found if each.type == fs.FileType.File]

    def _delete(self, path: str) -> None:
        self._files.delete_file(path)

    def _write_locally(self, path: str, data: bytes, place: Callable[[str, str], None]) -> None:
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


class HadoopStore(StateStore):
    """A folder of HDFS. A file is renamed into place when all DataNodes have it on their disks.

    The address may have a name service of ``HADOOP_CONF_DIR`` in place of host and port.

    Raises:
        ConfigError: The address does not belong to a known cluster.
    """

    _failures = OSError, RuntimeError
    """Answers of a server that have no class of their own are RuntimeErrors."""

    def __init__(self, address: str) -> None:
        from hdfs_native import Client

        parts = urlsplit(address)
        super().__init__(address, parts.path or "/")
        try:
            self._client = Client(f"{_HDFS}{parts.netloc}")
        except (*self._failures, ValueError) as error:
            raise ConfigError(f"checkpoint {self.address}: {error}") from error

    def _read(self, path: str) -> bytes:
        with self._client.read(path) as file:
            return bytes(file.readall())

    def _read_part(self, path: str, offset: int, length: int) -> bytes:
        with self._client.read(path) as file:
            there = max(0, min(length, len(file) - offset))
            return bytes(file.read_range(offset, there)) if there else b""

    def _create(self, path: str, data: bytes) -> None:
        """Exactly one of several processes succeeds."""
        self._write(path, data, may_replace=False)

    def _write(self, path: str, data: bytes, *, may_replace: bool = True) -> None:
        draft = self._path(f"{DRAFTS}/{uuid.uuid4().hex}")
        for folder in (draft, path):
            parent = str(PurePosixPath(folder).parent)
            self._client.mkdirs(parent, permission=_PERMISSION, create_parent=True)
        with self._client.create(draft) as file:
            file.write(data)
            file.hsync()
        try:
            self._client.rename(draft, path, overwrite=may_replace)
        except self._failures:
            self._client.delete(draft)
            raise

    def _list(self, path: str) -> Names:
        try:
            found = list(self._client.list_status(path))
        except FileNotFoundError:
            return []
        return [PurePosixPath(each.path).name for each in found if not each.isdir]

    def _delete(self, path: str) -> None:
        self._client.delete(path)


def open_store(address: str, shown: str | None = None) -> StateStore:
    """Returns the store at an address; see :class:`ArrowStore` for the arguments and errors."""
    return HadoopStore(address) if address.startswith(_HDFS) else ArrowStore(address, shown)


class MemoryStore(StateStore):
    """A store in the memory of this process, for tests, and for a pipeline that stores nothing."""

    def __init__(self) -> None:
        super().__init__("in memory", "")
        self.files: dict[str, bytes] = {}

    def _read(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def _read_part(self, path: str, offset: int, length: int) -> bytes:
        return self._read(path)[offset : offset + length]

    def _create(self, path: str, data: bytes) -> None:
        if path in self.files:
            raise FileExistsError(path)
        self._write(path, data)

    def _write(self, path: str, data: bytes) -> None:
        self.files[path] = data

    def _list(self, path: str) -> Names:
        return [PurePosixPath(name).name for name in self.files if str(PurePosixPath(name).parent) == path]

    def _delete(self, path: str) -> None:
        self.files.pop(path, None)


def _in_one_request(address: str) -> str:
    """Makes object storage accept a small file in one request, instead of three for an upload."""
    if not address.startswith("s3://") or "allow_delayed_open" in address:
        return address
    return f"{address}{'&' if '?' in address else '?'}allow_delayed_open=true"


def without_credentials(text: str) -> str:
    """Returns an address, or an error that contains one, without credentials."""
    return _CREDENTIALS.sub("***@", text)


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
