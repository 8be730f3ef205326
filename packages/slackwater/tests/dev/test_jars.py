"""Only pinned bytes are used, and only complete sets."""

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path

import pytest

from slackwater.dev import JarSet, PinnedJar, cache_folder
from slackwater.dev.java import Progress, ensure_jars, find_damage, parse_manifest
from slackwater.protocol import UnavailableError
from slackwater_lab.messaging.connectors import ConnectPlugin

CONTENT = {"a-1.jar": b"alpha", "b-2.jar": b"beta"}


@pytest.fixture
def wanted(tmp_path: Path) -> JarSet:
    pinned = (PinnedJar(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in CONTENT.items())
    return JarSet(tmp_path / "jars" / "key", tuple(pinned))


class FakeRepository:
    """Writes jars into a folder and counts how often it was asked to."""

    def __init__(self, content: dict[str, bytes]) -> None:
        self.content = content
        self.fetched = 0

    def fetch(self, target: Path, tell: Progress) -> None:
        self.fetched += 1
        target.mkdir()
        for name, data in self.content.items():
            (target / name).write_bytes(data)


def silent(line: str) -> None:
    """Nobody watches."""


def test_a_second_call_fetches_nothing(wanted: JarSet) -> None:
    repository = FakeRepository(CONTENT)
    ensure_jars(wanted, repository.fetch, silent)
    ensure_jars(wanted, repository.fetch, silent)
    assert repository.fetched == 1


def test_of_two_at_once_one_fetches_and_both_have_the_jars(wanted: JarSet) -> None:
    repository = FakeRepository(CONTENT)
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(ensure_jars, wanted, repository.fetch, silent) for _ in range(4)]:
            future.result()
    assert repository.fetched == 1
    assert find_damage(wanted) is None


def test_a_jar_with_other_bytes_of_the_same_size_is_refused(wanted: JarSet) -> None:
    with pytest.raises(UnavailableError, match=r"b-2\.jar has SHA-256"):
        ensure_jars(wanted, FakeRepository({**CONTENT, "b-2.jar": b"bet4"}).fetch, silent)
    assert not wanted.folder.exists()


def test_a_missing_jar_is_named(wanted: JarSet) -> None:
    with pytest.raises(UnavailableError, match=r"b-2\.jar is missing"):
        ensure_jars(wanted, FakeRepository({"a-1.jar": b"alpha"}).fetch, silent)


@pytest.mark.parametrize("data", [b"bet", b"atab", b""])
def test_a_jar_in_the_cache_with_other_bytes_is_named_and_fetched_again(wanted: JarSet, data: bytes) -> None:
    repository, told = FakeRepository(CONTENT), list[str]()
    ensure_jars(wanted, repository.fetch, silent)
    (wanted.folder / "b-2.jar").write_bytes(data)
    ensure_jars(wanted, repository.fetch, told.append)
    assert repository.fetched == 2
    assert "b-2.jar has SHA-256" in told[0]
    assert find_damage(wanted) is None


def test_leftovers_of_a_killed_download_are_no_hindrance(wanted: JarSet) -> None:
    leftover = wanted.folder.with_name(f".{wanted.folder.name}.incoming")
    leftover.mkdir(parents=True)
    (leftover / "half.jar").touch()
    ensure_jars(wanted, FakeRepository(CONTENT).fetch, silent)
    assert sorted(path.name for path in wanted.folder.iterdir()) == sorted(CONTENT)


def test_the_classpath_has_a_fixed_order(wanted: JarSet) -> None:
    assert wanted.classpath == f"{wanted.folder}/a-1.jar:{wanted.folder}/b-2.jar"


def test_the_version_of_an_artifact_is_found() -> None:
    jars = JarSet(
        Path("/c"), (PinnedJar("kafka_2.13-4.3.1.jar", 1, ""), PinnedJar("kafka-raft-4.3.1.jar", 1, ""))
    )
    assert jars.version_of("kafka_2.13") == "4.3.1"
    assert jars.version_of("connect") == ""


@pytest.mark.parametrize(
    ("owner", "folder", "count"),
    [
        ("slackwater.dev", "", 103),
        ("slackwater_lab.servers", "s3proxy", 20),
        ("slackwater_lab.servers", "hdfs", 1),
        *(("slackwater_lab.servers", each.value, 0) for each in ConnectPlugin),
    ],
)
def test_every_pinned_coordinate_has_a_line_in_the_manifest(owner: str, folder: str, count: int) -> None:
    data = resources.files(owner) / "data" / folder
    coordinates = re.findall(r'name="([^"]+)" rev="([^"]+)"', (data / "ivy-pinned.xml").read_text())
    jars = parse_manifest((data / "jars.sha256").read_text())
    assert sorted(jar.name for jar in jars) == sorted(f"{name}-{rev}.jar" for name, rev in coordinates)
    assert len(jars) == count or count == 0


@pytest.mark.parametrize("plugin", ConnectPlugin)
def test_a_plugin_brings_no_jar_that_the_worker_has(plugin: ConnectPlugin) -> None:
    ours_at, its_at = (
        resources.files(owner) / "data" for owner in ("slackwater.dev", "slackwater_lab.servers")
    )
    manifests = [ours_at / "jars.sha256", its_at / plugin.value / "jars.sha256"]
    ours, its = ({jar.sha256 for jar in parse_manifest(manifest.read_text())} for manifest in manifests)
    assert its
    assert not ours & its


def test_without_a_home_folder_the_cache_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(UnavailableError, match="set SLACKWATER_CACHE"):
        cache_folder({})
