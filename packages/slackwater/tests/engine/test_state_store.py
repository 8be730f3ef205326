"""What every store of state promises, and what only one on a disk must withstand."""

import os
import stat
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from slackwater.engine.state.store import ArrowStore, MemoryStore, StateStore, open_store
from slackwater.protocol import ConfigError, StateError, UnavailableError
from slackwater_lab.servers.storage import DataNode, NameNode, ObjectStore

MakeStore = Callable[[], StateStore]


def in_memory(_: Path) -> StateStore:
    return MemoryStore()


def by_path(folder: Path) -> StateStore:
    return ArrowStore(str(folder / "checkpoint"))


def by_address(folder: Path) -> StateStore:
    return ArrowStore(f"file://{folder}/checkpoint")


def elsewhere(_: Path) -> StateStore:
    """Arrow's double of a file system that is not this machine's."""
    return ArrowStore("mock:///bucket/checkpoint")


def in_object_storage(server: ObjectStore, folder: str) -> ArrowStore:
    query = f"endpoint_override={server.address.partition('://')[2]}&scheme=http&region=us-east-1"
    return ArrowStore(f"s3://{server.access_key}:{server.secret_key}@{server.bucket}/{folder}?{query}")


def in_hdfs(server: NameNode) -> StateStore:
    return open_store(f"{server.url}/{uuid.uuid4().hex}")


OBJECTS = pytest.param("object_store", id="in_object_storage", marks=pytest.mark.integration)
HDFS = pytest.param("hdfs", id="in_hdfs", marks=[pytest.mark.integration, pytest.mark.slow])


@pytest.fixture(params=[in_memory, by_path, by_address, elsewhere, OBJECTS, HDFS])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StateStore:
    if request.param == "object_store":
        return in_object_storage(request.getfixturevalue("object_store"), uuid.uuid4().hex)
    if request.param == "hdfs":
        return in_hdfs(request.getfixturevalue("hdfs"))
    made: StateStore = request.param(tmp_path)
    return made


def test_what_is_written_is_read(store: StateStore) -> None:
    store.write("manifests/a", b"one")
    store.write("b", b"")
    assert (store.read("manifests/a"), store.read("b")) == (b"one", b"")


def test_a_file_that_is_not_there_is_none(store: StateStore) -> None:
    assert store.read("manifests/a") is None
    store.write("manifests/b", b"1")
    assert store.read("manifests/a") is None


def test_a_file_may_be_written_again(store: StateStore) -> None:
    store.write("manifests/a", b"first")
    store.write("manifests/a", b"2")
    assert store.read("manifests/a") == b"2"


@pytest.mark.parametrize(
    ("offset", "length", "part"), [(0, 2, b"ab"), (3, 2, b"de"), (4, 9, b"ef"), (6, 3, b""), (60, 3, b"")]
)
def test_a_part_ends_where_the_file_ends(store: StateStore, offset: int, length: int, part: bytes) -> None:
    store.write("segments/a", b"abcdef")
    assert store.read_part("segments/a", offset, length) == part


def test_a_part_of_a_file_that_is_not_there_is_an_error_that_names_it(store: StateStore) -> None:
    with pytest.raises(StateError, match="no file segments/a"):
        store.read_part("segments/a", 0, 1)


def test_a_file_that_is_there_is_not_created_again(store: StateStore) -> None:
    assert store.create("note.json", b"first")
    assert not store.create("note.json", b"second")
    assert not store.create("note.json", b"first")
    assert store.read("note.json") == b"first"


def test_only_files_of_the_folder_are_listed(store: StateStore) -> None:
    assert store.list("manifests") == []
    assert store.list("") == []
    for name in ("manifests/b", "manifests/a", "manifests/deeper/c", "segments/d", "e"):
        store.write(name, b"")
    assert sorted(store.list("manifests")) == ["a", "b"]
    assert store.list("") == ["e"]


def test_what_is_deleted_is_gone_and_what_was_never_there_does_not_matter(store: StateStore) -> None:
    store.delete(["manifests/a"])
    for name in ("a", "b", "c"):
        store.write(f"manifests/{name}", b"")
    store.delete(["manifests/a", "manifests/absent", "manifests/c"])
    assert store.list("manifests") == ["b"]
    assert store.read("manifests/a") is None


@pytest.mark.parametrize("make_store", [by_path, by_address])
class TestOnADisk:
    """A folder of this machine."""

    def test_nothing_that_is_not_whole_is_ever_seen(
        self, make_store: Callable[[Path], StateStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = make_store(tmp_path)
        store.write("manifests/a", b"old")
        store.write("b", b"old")
        seen = []

        def no_space(_: int) -> None:
            seen.append((store.read("manifests/a"), store.list("manifests"), store.list("")))
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", no_space)
        for write in (store.write, store.create):
            with pytest.raises(UnavailableError, match=r"manifests/new cannot be written: .*No space left"):
                write("manifests/new", b"new")
            with pytest.raises(UnavailableError):
                write("c", b"new")
        assert seen == [(b"old", ["a"], ["b"])] * 4
        monkeypatch.undo()
        assert (store.read("manifests/new"), store.list("manifests"), store.list("")) == (None, ["a"], ["b"])
        assert list((tmp_path / "checkpoint" / ".drafts").iterdir()) == []

    def test_a_file_and_the_folder_that_has_it_are_on_the_disk_when_a_write_returns(
        self, make_store: Callable[[Path], StateStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = make_store(tmp_path)
        synced: list[tuple[str, bool]] = []
        sync = os.fsync

        def noting(descriptor: int) -> None:
            place = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            target = tmp_path / "checkpoint" / "manifests" / "a"
            name = place.name if place.is_dir() else place.read_text()
            synced.append((name, target.exists()))
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", noting)
        store.write("manifests/a", b"contents")
        assert [each for each in synced if each[0] == "contents"] == [("contents", False)]
        assert synced[-1] == ("manifests", True), "its name"
        assert {"checkpoint", tmp_path.name} <= {name for name, _ in synced}, "the folders that were made"

    def test_of_several_that_create_a_file_one_does(
        self, make_store: Callable[[Path], StateStore], tmp_path: Path
    ) -> None:
        store, barrier = make_store(tmp_path), threading.Barrier(8)
        created: list[int] = []

        def create(number: int) -> None:
            barrier.wait()
            if store.create("note.json", b"%d" % number):
                created.append(number)

        threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = created
        assert store.read("note.json") == b"%d" % winner

    def test_other_accounts_cannot_read_it(
        self, make_store: Callable[[Path], StateStore], tmp_path: Path
    ) -> None:
        store, folder = make_store(tmp_path), tmp_path / "checkpoint" / "segments"
        for name in ("a", "b"):
            store.write(f"segments/{name}", b"rows of the source")
        for path in (folder, folder / "a", folder / "b"):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0

    def test_what_the_disk_refuses_is_an_error_that_names_it(
        self, make_store: Callable[[Path], StateStore], tmp_path: Path
    ) -> None:
        store = make_store(tmp_path)
        (tmp_path / "checkpoint").write_text("a file")
        attempts: dict[str, Callable[[], object]] = {
            "manifests/a": lambda: store.write("manifests/a", b""),
            "manifests/b": lambda: store.create("manifests/b", b""),
            "manifests/c": lambda: store.read("manifests/c"),
            "manifests/d": lambda: store.read_part("manifests/d", 0, 1),
            "manifests/e": lambda: store.delete(["manifests/e"]),
            "the folder": lambda: store.list(""),
        }
        for name, attempt in attempts.items():
            expected = rf"checkpoint .*: {name} cannot be .*Nothing is lost"
            with pytest.raises(UnavailableError, match=expected):
                attempt()

    def test_another_process_reads_the_same(
        self, make_store: Callable[[Path], StateStore], tmp_path: Path
    ) -> None:
        make_store(tmp_path).write("manifests/a", b"1")
        assert make_store(tmp_path).read("manifests/a") == b"1"


def test_a_relative_path_is_one_of_the_folder_in_which_the_process_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = ArrowStore("checkpoint")
    monkeypatch.chdir("/")
    store.write("a", b"1")
    assert (tmp_path / "checkpoint" / "a").read_bytes() == b"1"


@pytest.mark.parametrize("address", ["nowhere://host/x", "s3://bucket/x?unheard=of", "file://host/x"])
def test_an_address_of_no_known_file_system_is_an_error_that_says_which_there_are(address: str) -> None:
    with pytest.raises(ConfigError, match="expected a local folder, or an address"):
        ArrowStore(address)


@pytest.mark.parametrize(
    "address",
    [
        "nowhere://user:secret@host/x",
        "s3://AKIA:secret@bucket/x?unheard=of",
        "s3://AKIA:sec/secret@bucket/x",
        "s3://AKIA:secret@b@bucket/x",
        "s3://AKIA:secret@no bucket/x",
    ],
)
def test_credentials_are_not_in_the_error_of_an_address(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ArrowStore(address)
    assert "secret" not in str(caught.value)
    assert "bucket/x" in str(caught.value) or "host/x" in str(caught.value)


def test_credentials_are_not_in_the_errors_of_files() -> None:
    store = ArrowStore("mock://user:se%2Fcret@bucket/x")
    assert store.address == "mock://***@bucket/x"
    with pytest.raises(StateError) as caught:
        store.read_part("segments/a", 0, 1)
    assert "cret" not in str(caught.value)


@pytest.mark.integration
def test_object_storage_that_does_not_answer_or_refuses_is_an_error_that_says_so_without_the_key(
    object_store: ObjectStore,
) -> None:
    store = in_object_storage(object_store, "refused")
    store.write("a", b"1")
    object_store.secret_key, known = "another", object_store.secret_key
    refused = in_object_storage(object_store, "refused")
    object_store.secret_key = known
    for attempt in (
        lambda: refused.write("a", b"2"),
        lambda: refused.read("a"),
        lambda: refused.list(""),
        lambda: refused.delete(["a"]),
    ):
        with pytest.raises(UnavailableError, match="Nothing is lost") as caught:
            attempt()
        assert "another" not in str(caught.value)
    assert store.read("a") == b"1"


@pytest.mark.integration
def test_a_bucket_that_is_not_there_is_an_error_when_it_is_written_to(object_store: ObjectStore) -> None:
    query = f"endpoint_override={object_store.address.partition('://')[2]}&scheme=http&region=us-east-1"
    who = f"{object_store.access_key}:{object_store.secret_key}"
    with pytest.raises(UnavailableError, match="cannot be written"):
        ArrowStore(f"s3://{who}@nowhere/x?{query}").write("a", b"1")


@pytest.mark.integration
@pytest.mark.slow
def test_hdfs_that_does_not_answer_is_an_error_and_no_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had is there when it answers again, and what was being written is there as a whole or not."""
    once = "<property><name>dfs.client.failover.max.attempts</name><value>1</value></property>"
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{once}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    names = NameNode(tmp_path / "hadoop")
    names.start()
    contents = DataNode(tmp_path / "hadoop", name_node=names)
    contents.start()
    try:
        store = in_hdfs(names)
        store.write("manifests/a", b"1")
        names.kill()
        for attempt in (
            lambda: store.write("manifests/b", b"2"),
            lambda: store.create("manifests/b", b"2"),
            lambda: store.read("manifests/a"),
            lambda: store.read_part("manifests/a", 0, 1),
            lambda: store.list("manifests"),
            lambda: store.delete(["manifests/a"]),
        ):
            with pytest.raises(UnavailableError, match="Nothing is lost"):
                attempt()
        names.start()
        assert store.list("manifests") == ["a"]
    finally:
        contents.stop()
        names.stop()
