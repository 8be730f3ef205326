"""Programs are believed only after they were run."""

import os
from pathlib import Path

import pytest

from slackwater.dev.java import JAVA_VERSION, find_java
from slackwater.dev.postgres import POSTGRES_VERSION, check_postgres, find_postgres
from slackwater.dev.processes import Version, parse_version
from slackwater.dev.redis_server import REDIS_VERSION
from slackwater.protocol import UnavailableError


def script(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', Version("17.0.15", 17)),
        ('openjdk version "21" 2023-09-19', Version("21", 21)),
        ('java version "1.8.0_402"', Version("1.8.0_402", 8)),
        ('Picked up JAVA_TOOL_OPTIONS: -Da=b\nopenjdk version "25-ea"', Version("25-ea", 25)),
        ("command not found", None),
    ],
)
def test_the_version_of_java_is_read(output: str, version: Version | None) -> None:
    assert parse_version(output, JAVA_VERSION) == version


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", Version("15.18", 15)),
        ("initdb (PostgreSQL) 18.4", Version("18.4", 18)),
        ("postgres (PostgreSQL) 19beta1", Version("19beta1", 19)),
        ("psql: error", None),
    ],
)
def test_the_version_of_postgres_is_read(output: str, version: Version | None) -> None:
    assert parse_version(output, POSTGRES_VERSION) == version


def test_the_version_of_redis_is_read() -> None:
    assert parse_version("Redis server v=7.2.15 sha=0 bits=64", REDIS_VERSION) == Version("7.2.15", 7, 2)
    assert parse_version("no such file", REDIS_VERSION) is None


def test_no_java_is_one_sentence_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        find_java({"PATH": str(tmp_path)})
    assert str(caught.value) == (
        "Java 17 or newer is needed, but there is no `java` on PATH; "
        "install a JDK or JRE 17 or newer and put `java` on PATH or set JAVA_HOME"
    )


def test_an_old_java_is_refused_with_its_version(tmp_path: Path) -> None:
    script(tmp_path / "bin" / "java", "echo 'openjdk version \"11.0.2\"' >&2")
    with pytest.raises(UnavailableError, match=r"is version 11\.0\.2"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_a_java_that_does_not_run_is_refused(tmp_path: Path) -> None:
    script(tmp_path / "java", "exit 3")
    with pytest.raises(UnavailableError, match="does not say its version"):
        find_java({"PATH": str(tmp_path)})


def test_a_java_home_without_java_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="does not run"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_working_postgres_programs_are_accepted(tmp_path: Path) -> None:
    for name in ("postgres", "initdb"):
        script(tmp_path / name, f"echo '{name} (PostgreSQL) 16.14'")
    found = check_postgres(tmp_path, None)
    assert found is not None
    assert found.version == Version("16.14", 16)


def test_a_broken_wrapper_called_postgres_is_not_accepted(tmp_path: Path) -> None:
    script(tmp_path / "initdb", "echo 'initdb (PostgreSQL) 16.14'")
    script(tmp_path / "postgres", "echo 'postgres (PostgreSQL) 16.14'; exit 1")
    assert check_postgres(tmp_path, None) is None


def test_programs_of_different_versions_are_not_accepted(tmp_path: Path) -> None:
    script(tmp_path / "initdb", "echo 'initdb (PostgreSQL) 16.14'")
    script(tmp_path / "postgres", "echo 'postgres (PostgreSQL) 15.1'")
    assert check_postgres(tmp_path, None) is None


def test_a_folder_without_initdb_is_not_accepted(tmp_path: Path) -> None:
    script(tmp_path / "postgres", "echo 'postgres (PostgreSQL) 16.14'")
    assert check_postgres(tmp_path, None) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look everywhere")
def test_a_folder_on_path_that_we_may_not_look_into_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    (closed / "bin").mkdir(parents=True)
    closed.chmod(0)
    monkeypatch.setenv("PATH", str(closed / "bin"))
    assert next(find_postgres(None), None) is not None
    closed.chmod(0o700)
