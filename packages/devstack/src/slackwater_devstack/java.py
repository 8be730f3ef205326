"""The Java that runs Kafka, Connect and the jar resolver."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slackwater_devstack.errors import PrerequisiteError

LEAST_MAJOR = 17
_REMEDY = f"install a JDK or JRE {LEAST_MAJOR} or newer and put `java` on PATH or set JAVA_HOME"
_WHAT = f"Java {LEAST_MAJOR} or newer"
_VERSION = re.compile(r'version "(?P<full>(?:1\.)?(?P<major>\d+)[^"]*)"')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was seen to run."""

    executable: Path
    version: str
    """As it says itself, for example ``17.0.15``."""


def parse_java_version(output: str) -> tuple[int, str] | None:
    """Major and full version in what ``java -version`` prints; None when there is none."""
    match = _VERSION.search(output)
    return (int(match["major"]), match["full"]) if match else None


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """The Java of JAVA_HOME, else of PATH.

    Raises:
        PrerequisiteError: none, one that does not run, or one that is too old.
    """
    home = environment.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    if found is None:
        raise PrerequisiteError(_WHAT, "there is no `java` on PATH", _REMEDY)
    try:
        result = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PrerequisiteError(_WHAT, f"{found} does not run ({error})", _REMEDY) from error
    version = parse_java_version(result.stderr + result.stdout)
    if result.returncode != 0 or version is None:
        raise PrerequisiteError(_WHAT, f"{found} does not say its version", _REMEDY)
    if version[0] < LEAST_MAJOR:
        raise PrerequisiteError(_WHAT, f"{found} is version {version[1]}", _REMEDY)
    return Java(Path(found), version[1])
