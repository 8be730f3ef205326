"""YAML and JSON with the line of each value, and values as they are written, so that no digit is lost."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import yaml

from slackwater.protocol import InputError

_INTEGER: Final = re.compile(r"[-+]?[0-9]+\Z")
_DECIMAL: Final = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?\Z")
_CONSTANTS: Final[Mapping[str, object]] = {"": None, "~": None, "null": None, "true": True, "false": False}
"""The constants of YAML 1.2, in which `no` and `on` are texts."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A value of a file, with its place.

    Attributes:
        value: A mapping or list of such values, or a text, int, Decimal, bool or None.
        file: The file.
        line: The line, from 1; for the value of a mapping, the line of its name.
    """

    value: Any
    file: Path
    line: int

    def plain(self) -> Any:
        """Returns the value without places."""
        match self.value:
            case dict():
                return {name: each.plain() for name, each in self.value.items()}
            case list():
                return [each.plain() for each in self.value]
        return self.value

    def mapping(self, what: str) -> "dict[str, Placed]":
        """Returns the value, which must be a mapping.

        Raises:
            InputError: It is not.
        """
        if not isinstance(self.value, dict):
            raise self.error(f"expected {what}, as a mapping")
        return self.value

    def list(self, what: str) -> "list[Placed]":
        """Returns the value, which must be a list.

        Raises:
            InputError: It is not.
        """
        if not isinstance(self.value, list):
            raise self.error(f"expected {what}, as a list")
        return self.value

    @property
    def place(self) -> str:
        """The file and the line, in the form that editors and terminals recognise."""
        return f"{self.file}:{self.line}"

    def error(self, problem: str, hint: str = "") -> InputError:
        """Returns an error at this place."""
        return InputError(f"{self.place}: {problem}", hint)


def read_placed(path: Path) -> Placed:
    """Reads a file of YAML, of which JSON is a subset.

    Raises:
        InputError: It cannot be read; the error contains the line.
    """
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = " ".join(filter(None, [error.context, error.problem]))
        raise InputError(f"{path}:{line}: {problem}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    return Placed(None, path, 1) if node is None else _placed(node, path)


def _placed(node: yaml.Node, path: Path, line: int = 0) -> Placed:
    line = line or node.start_mark.line + 1
    match node:
        case yaml.MappingNode():
            found: dict[str, Placed] = {}
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise InputError(f"{path}:{line}: expected a name before the colon")
                if key.value in found:
                    place = f"{path}:{key.start_mark.line + 1}"
                    raise InputError(f"{place}: {key.value} occurs twice")
                found[key.value] = _placed(value, path, key.start_mark.line + 1)
            return Placed(found, path, line)
        case yaml.SequenceNode():
            return Placed([_placed(each, path) for each in node.value], path, line)
    return Placed(_scalar(node), path, line)


def _scalar(node: yaml.Node) -> object:
    text: str = node.value
    if node.style is not None:  # type: ignore[attr-defined]  # quoted, or a block of text
        # JSON writes characters beyond the first plane as two escapes.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.match(text):
        return int(text)
    return Decimal(text) if _DECIMAL.match(text) else text
