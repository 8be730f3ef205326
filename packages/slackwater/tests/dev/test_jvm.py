"""Command lines of Java programs. A class archive is used only if it is whole: else Java crashes."""

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from slackwater.dev.java import Collector, JarSet, JavaProgram, JavaServer
from slackwater.dev.kafka import KafkaBroker
from slackwater.dev.processes import InstalledProgram, Version, missing_prerequisite
from slackwater.protocol import UnavailableError


@pytest.fixture
def program(tmp_path: Path) -> JavaProgram:
    """A program whose jars and archives are in a folder of the test's own."""
    return JavaProgram(
        java=InstalledProgram(tmp_path / "java", Version("17.0.15", 17)),
        jars=JarSet(tmp_path / "cache" / "jars" / "one", ()),
        main="kafka.Kafka",
        heap="256m",
    )


def record(program: JavaProgram, folder: Path, content: bytes = b"classes") -> None:
    """What a run without an archive leaves in its folder."""
    folder.mkdir(exist_ok=True)
    program.recording(folder).write_bytes(content)
    program.publish_recording(folder)


def test_options_stand_before_the_class_and_arguments_behind_it(program: JavaProgram, tmp_path: Path) -> None:
    command = replace(program, options=("-Xint",)).command(("server.properties",), tmp_path)

    assert command.index("-Xint") < command.index("kafka.Kafka") < command.index("server.properties")


def test_a_broker_starts_without_the_second_compiler(
    program: JavaProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[str, ...]] = []

    def find(_: JavaServer, main: str, heap: str, collector: Collector, options: tuple[str, ...]) -> NoReturn:
        given.append(options)
        raise missing_prerequisite("Java", "this test needs only the options", "none")

    monkeypatch.setattr(JavaServer, "_find_program", find)
    with pytest.raises(UnavailableError):
        KafkaBroker(tmp_path).start()

    assert given == [("-XX:TieredStopAtLevel=1",)]


def test_without_an_archive_the_program_records_one(program: JavaProgram, tmp_path: Path) -> None:
    assert f"-XX:ArchiveClassesAtExit={tmp_path / 'classes.jsa'}" in program.command((), tmp_path)


def test_a_recorded_archive_is_used_and_checked(program: JavaProgram, tmp_path: Path) -> None:
    record(program, tmp_path / "run")

    command = program.command((), tmp_path / "run")

    assert f"-XX:SharedArchiveFile={program.archive()}" in command
    assert "-XX:+VerifySharedSpaces" in command
    assert not program.recording(tmp_path / "run").exists()


@pytest.mark.parametrize("content", [b"", b"classe", b"classes and more"])
def test_an_archive_of_another_size_is_recorded_anew(
    program: JavaProgram, tmp_path: Path, content: bytes
) -> None:
    record(program, tmp_path / "run")
    damaged = program.archive()
    assert damaged is not None
    damaged.write_bytes(content)

    assert program.archive() is None
    record(program, tmp_path / "run")

    assert program.archive() == damaged
    assert damaged.read_bytes() == b"classes"


def test_the_first_recording_is_kept(program: JavaProgram, tmp_path: Path) -> None:
    record(program, tmp_path / "run", b"first")
    record(program, tmp_path / "run", b"second one")

    archive = program.archive()
    assert archive is not None
    assert archive.read_bytes() == b"first"


@pytest.mark.parametrize(
    "other",
    [
        {"java": InstalledProgram(Path("/other/java"), Version("17.0.15", 17))},
        {"java": InstalledProgram(Path("/java"), Version("17.0.16", 17))},
        {"main": "org.apache.kafka.connect.cli.ConnectDistributed"},
        {"collector": Collector.PARALLEL},
    ],
)
def test_another_program_has_an_archive_of_its_own(
    program: JavaProgram, tmp_path: Path, other: dict[str, object]
) -> None:
    record(program, tmp_path / "run")
    values = {name: getattr(program, name) for name in ("java", "jars", "main", "heap", "collector")} | other

    assert JavaProgram(**values).archive() is None
