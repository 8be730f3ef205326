"""Reads ``pipeline.toml`` of a pipeline's folder, key by key, without loading any library.

This precedes everything else, because the name and the revision determine where a run logs and keeps its
state.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slackwater_spark.errors import PipelineConfigError
from slackwater_spark.pipeline.settings import revision_name

DEFINITION_FILE: Final = "pipeline.toml"

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True)
class TomlTable:
    """A table of a TOML file that checks the values that are read from it.

    Every method raises :class:`PipelineConfigError` with file, key and what was expected.
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

    def integer(self, key: str, default: int | None, *, minimum: int) -> int | None:
        """Returns a whole number; None if there is neither one nor a default."""
        value = self.values.get(key, default)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.error(key, f"expected a whole number of at least {minimum}, got {_shown(value)}")
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

    def error(self, key: str, problem: str, hint: str = "") -> PipelineConfigError:
        """Returns an error at a key of this table."""
        return PipelineConfigError(f"{self.file}: {self._dotted(key)}: {problem}", hint)

    def _dotted(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


def read_definition(folder: Path) -> TomlTable:
    """Reads the definition file of a pipeline's folder.

    Raises:
        PipelineConfigError: It does not exist, or it is not TOML.
    """
    path = folder / DEFINITION_FILE
    try:
        return TomlTable(str(path), "", tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise PipelineConfigError(
            f"{path}: no such file",
            "a pipeline is a folder that contains this file; `slackwater new DIR` creates one",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PipelineConfigError(f"{path}: not readable as TOML: {error}") from error


def name_and_revision(definition: TomlTable) -> tuple[str, int]:
    """Returns a pipeline's name, without the revision, and the revision.

    Raises:
        PipelineConfigError: Something cannot be used; the error names the key and the reason.
    """
    return definition.topic_name("name"), definition.integer("revision", 1, minimum=1) or 1


def labels_of(folder: Path) -> tuple[str, str]:
    """Returns the name of a folder's pipeline, with its revision, and its source.

    Raises:
        PipelineConfigError: Something cannot be used; the error names the file, the key and the reason.
    """
    definition = read_definition(folder)
    return revision_name(*name_and_revision(definition)), definition.topic_name("source")


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)
