"""Reads ``pipeline.toml`` of a pipeline's folder, key by key, without loading any library.

This precedes everything else, because the name and the revision determine where a run logs and keeps its
state.
"""

import difflib
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slackwater.pipeline.settings import revision_name
from slackwater.protocol import ConfigError

DEFINITION_FILE: Final = "pipeline.toml"

MAX_FILE_BYTES: Final = 16 << 20
"""No file of a pipeline is longer. Views have at most 100,000 characters; schemas may have many tables."""
_MAX_REVISION: Final = 2**31 - 1
_TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True)
class TomlTable:
    """A table of a TOML file that checks the values that are read from it.

    Every method raises :class:`ConfigError` with file, key and what was expected.
    """

    file: str
    path: str
    """Dotted path of the table in the file; empty for the file itself."""
    values: Mapping[str, Any]

    def only(self, known: Iterable[str]) -> None:
        """Rejects keys that are not known."""
        names = list(known)
        for key in self.values:
            if key not in names:
                close = difflib.get_close_matches(key, names, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"
                raise self.error(key, "is not a known key", hint)

    def text(self, key: str, default: str | None = None) -> str:
        """Returns a non-empty text, which is required unless there is a default."""
        value = self.values.get(key, default)
        if not isinstance(value, str) or not value:
            raise self.error(key, f"expected a text, got {_shown(value)}")
        return value

    def choice(self, key: str, allowed: Iterable[str], default: str) -> str:
        """Returns one of a few texts."""
        value = self.text(key, default)
        if value not in allowed:
            raise self.error(key, f"expected {' or '.join(map(repr, allowed))}, got {value!r}")
        return value

    def integer(self, key: str, default: int | None, *, maximum: int) -> int | None:
        """Returns a whole number from 1 on; None if there is neither one nor a default."""
        value = self.values.get(key, default)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= maximum:
            raise self.error(key, f"expected a whole number from 1 to {maximum}, got {_shown(value)}")
        return value

    def boolean(self, key: str, *, default: bool) -> bool:
        """Returns true or false."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, got {_shown(value)}")
        return value

    def table(self, key: str) -> "TomlTable":
        """Returns a table below this one; empty if it does not exist."""
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.error(key, f"expected a table, got {_shown(value)}")
        return TomlTable(self.file, self._dotted(key), value)

    def topic_name(self, key: str, default: str | None = None) -> str:
        """Returns a text that Kafka accepts in a topic's name."""
        name = self.text(key, default)
        if not _TOPIC_NAME.fullmatch(name):
            raise self.error(
                key, f"{name!r} is part of Kafka topic names: expected letters, digits, '.', '_' and '-'"
            )
        return name

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


def name_and_revision(definition: TomlTable) -> tuple[str, int]:
    """Returns a pipeline's name, without the revision, and the revision.

    Raises:
        ConfigError: Something cannot be used; the error names the key and the reason.
    """
    return definition.topic_name("name"), definition.integer("revision", 1, maximum=_MAX_REVISION) or 1


def labels_of(folder: Path) -> tuple[str, str]:
    """Returns the name of a folder's pipeline, with its revision, and its source.

    Raises:
        ConfigError: Something cannot be used; the error names the file, the key and the reason.
    """
    definition = read_definition(folder)
    return revision_name(*name_and_revision(definition)), definition.topic_name("source")


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)
