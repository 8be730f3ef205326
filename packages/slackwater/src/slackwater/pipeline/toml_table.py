"""Reads ``pipeline.toml`` of a pipeline's folder, key by key, without loading any library.

This precedes everything else, because the name and the revision determine where a run logs and keeps its
state.
"""

import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from msgspec import Meta

from slackwater.pipeline.settings import revision_name
from slackwater.protocol import ConfigError
from slackwater.settings.declared import Checks, Reader, declared_fields

Declared = TypeVar("Declared")

DEFINITION_FILE: Final = "pipeline.toml"

MAX_FILE_BYTES: Final = 16 << 20
"""No file of a pipeline is longer. Views have at most 100,000 characters; schemas may have many tables."""
_TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,200}")


def _check_topic_name(name: str) -> str:
    if not _TOPIC_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is part of Kafka topic names: expected letters, digits, '.', '_' and '-'")
    return name


TopicName = Annotated[str, Checks(_check_topic_name)]
"""A text that Kafka accepts in the name of a topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLabels:
    """What identifies a pipeline."""

    name: TopicName
    """Without the revision."""
    source: TopicName
    """The connector's ``topic.prefix``."""
    revision: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1
    """The number of the revision, from 1 on."""

    @property
    def full_name(self) -> str:
        """The name with the revision."""
        return revision_name(self.name, self.revision)


@dataclass(frozen=True, slots=True)
class TomlTable:
    """A table of a TOML file.

    Raises:
        ConfigError: Something cannot be used; the error has file and key of each such value, and what was
            expected.
    """

    file: str
    path: str
    """Dotted path of the table in the file; empty for the file itself."""
    values: Mapping[str, Any]

    def read(self, kind: type[Declared], *, ignores_others: bool = False) -> Declared:
        """Returns what the table says, in the form that a declaration gives it.

        Keys that it does not declare are refused, or ignored on request.
        """
        reader, known = Reader(), {each.name for each in declared_fields(kind)}  # type: ignore[arg-type]
        values = {key: each for key, each in self.values.items() if key in known or not ignores_others}
        found = reader.read(kind, values, self.path)
        if found is None:
            raise ConfigError("\n".join(f"{self.file}: {each}" for each in reader.problems))
        return found

    def table(self, key: str) -> "TomlTable":
        """Returns a table below this one; empty if it does not exist."""
        return TomlTable(self.file, self._dotted(key), self.values.get(key, {}))

    def error(self, key: str, problem: str, hint: str = "") -> ConfigError:
        """Returns an error at a key of this table."""
        return ConfigError(f"{self.file}: {self._dotted(key)}: {problem}", hint)

    def _dotted(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


def read_file(folder: Path, path: Path) -> str:
    """Reads a file of a pipeline's folder.

    Only files of the folder are read, because errors show parts of their texts.

    Raises:
        ConfigError: It is no file, it is outside of the folder, or it is too long.
        FileNotFoundError: It does not exist.
    """
    place = path.resolve()
    if not place.is_relative_to(folder.resolve()):
        hint = "copy the file into the folder"
        raise ConfigError(f"{path}: this link leads out of the folder of the pipeline", hint)
    facts = place.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise ConfigError(f"{path}: this is not a regular file", "write it as a file")
    if facts.st_size > MAX_FILE_BYTES:
        problem = f"{path}: the file has {facts.st_size:,} bytes, and at most {MAX_FILE_BYTES:,} are read"
        raise ConfigError(problem, "write several files")
    try:
        return place.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not readable as UTF-8: {error}") from error


def read_definition(folder: Path) -> TomlTable:
    """Reads the definition file of a pipeline's folder.

    Raises:
        ConfigError: It does not exist, or it is not TOML.
    """
    path = folder / DEFINITION_FILE
    try:
        return TomlTable(str(path), "", tomllib.loads(read_file(folder, path)))
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file",
            "a pipeline is a folder that contains this file; `slackwater new DIR` creates one",
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not readable as TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: not readable as TOML: it is nested too deeply") from error


def read_labels(folder: Path) -> PipelineLabels:
    """Returns what identifies the pipeline of a folder.

    Raises:
        ConfigError: Something cannot be used; the error names the file, the key and the reason.
    """
    return read_definition(folder).read(PipelineLabels, ignores_others=True)
