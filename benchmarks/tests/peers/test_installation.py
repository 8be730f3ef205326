import shutil
from pathlib import Path

import pytest

from slackwater.dev.java import parse_manifest
from slackwater_bench.peers import registry
from slackwater_bench.peers.registry import (
    COMPLETE,
    PEERS,
    SLACKWATER,
    Peer,
    fingerprint,
    install,
    peers_named,
)
from slackwater_lab.errors import RunFailedError

EXTERNAL = [peer for peer in PEERS if peer.name != SLACKWATER]


def silent(_: str) -> None:
    """Progress for nobody."""


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Peer:
    monkeypatch.setattr(registry, "PROGRAMS", tmp_path / "programs")
    (tmp_path / "programs" / "tiny").mkdir(parents=True)
    made = Peer(name="tiny", title="tiny", settings="none")
    (made.folder / "requirements.lock").write_text("")
    return made


@pytest.mark.parametrize("peer", EXTERNAL, ids=lambda peer: peer.name)
def test_every_requirement_of_a_peer_is_pinned_by_hash_and_names_no_index(peer: Peer) -> None:
    lock = (peer.folder / "requirements.lock").read_text()
    pinned = [line for line in lock.splitlines() if "==" in line and not line.lstrip().startswith("#")]
    assert pinned
    assert all(line.endswith("\\") for line in pinned)
    assert lock.count("--hash=sha256:") >= len(pinned)
    assert "://" not in lock
    assert "--index" not in lock


@pytest.mark.parametrize("peer", [peer for peer in EXTERNAL if peer.has_jars], ids=lambda peer: peer.name)
def test_every_jar_of_a_peer_is_pinned(peer: Peer) -> None:
    jars = parse_manifest((peer.folder / "jars.sha256").read_text())
    coordinates = (peer.folder / "ivy.xml").read_text()
    assert len(jars) == coordinates.count("<dependency ")
    assert all(len(jar.sha256) == 64 for jar in jars)


def test_the_fingerprint_follows_the_requirements(peer: Peer) -> None:
    before = fingerprint(peer)
    (peer.folder / "requirements.lock").write_text("# changed\n")
    assert fingerprint(peer) != before


def test_an_environment_is_made_once(peer: Peer, tmp_path: Path) -> None:
    said: list[str] = []
    first = install(peer, said.append, tmp_path / "cache")
    assert first.python.exists()
    assert install(peer, said.append, tmp_path / "cache") == first
    assert len(said) == 1


def test_a_half_made_environment_is_made_again(peer: Peer, tmp_path: Path) -> None:
    made = install(peer, silent, tmp_path / "cache")
    (made.python.parents[1] / COMPLETE).unlink()
    shutil.rmtree(made.python.parent)
    assert install(peer, silent, tmp_path / "cache").python.exists()


def test_what_cannot_be_installed_says_why(peer: Peer, tmp_path: Path) -> None:
    (peer.folder / "requirements.lock").write_text("./does-not-exist --hash=sha256:00\n")
    with pytest.raises(RunFailedError, match="tiny cannot be installed: "):
        install(peer, silent, tmp_path / "cache")


def test_peers_are_found_by_name_and_none_means_all() -> None:
    assert [peer.name for peer in peers_named(["fold", "quix"])] == ["fold", "quix"]
    assert peers_named([]) == PEERS
    with pytest.raises(RunFailedError, match="no peer 'spart'"):
        peers_named(["spart"])
