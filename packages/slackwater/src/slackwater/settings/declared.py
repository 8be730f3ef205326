"""Reads the values of files, environment variables and flags into the class that declares them.

A declaration is a frozen dataclass: a field is a name with its type and default, and the docstring below it
says what it means. ``Annotated`` adds what a type cannot say: limits (``msgspec.Meta``), how a text is read
(:class:`Reads`), and what a value must be (:class:`Checks`).
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import timedelta
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from slackwater.protocol import ConfigError
from slackwater.settings.errors import did_you_mean

Declared = TypeVar("Declared")

_NAME: Final = "name"
_YES: Final = ("yes", "y", "on", "t")
_NO: Final = ("no", "n", "off", "f")


@dataclass(frozen=True, slots=True)
class Reads:
    """Makes the value of a text. Values that are not texts are taken as they are."""

    read: Callable[[str], object]
    """Raises ValueError, with what was expected."""


@dataclass(frozen=True, slots=True)
class Checks:
    """Checks a value of the right type."""

    check: Callable[[Any], object]
    """Returns the value that is used instead. Raises ValueError, with what was expected."""


def named(name: str) -> dict[str, str]:
    """Returns the metadata of a field whose name in files is not that of the attribute."""
    return {_NAME: name}


@dataclass(frozen=True, slots=True)
class DeclaredField:
    """One field of a declaration."""

    owner: type
    attribute: str
    name: str
    """In files, in variables and in messages."""
    type: Any
    """Without ``None`` and ``Annotated``."""
    notes: tuple[object, ...]
    """What ``Annotated`` adds."""
    default: object
    """``MISSING``: a value must be given."""
    is_hidden: bool
    """Whether the value may be a secret, so that no text of the object contains it."""

    @property
    def meaning(self) -> str:
        """The docstring of the field; empty if it has none."""
        found = (_meanings(each).get(self.attribute) for each in self.owner.__mro__ if is_dataclass(each))
        return next(filter(None, found), "")


@cache
def declared_fields(kind: type) -> tuple[DeclaredField, ...]:
    """Returns the fields of a declaration."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        DeclaredField(
            kind,
            each.name,
            each.metadata.get(_NAME, each.name),
            *_parts(hints[each.name]),
            each.default if each.default_factory is MISSING else each.default_factory(),
            not each.repr,
        )
        for each in fields(kind)
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a value."""

    path: str
    """Dotted names, with the indexes of lists; empty for the whole."""
    text: str
    hint: str = ""

    def __str__(self) -> str:
        return "; ".join(filter(None, (f"{self.path}: {self.text}", self.hint)))


class Reader:
    """Reads values and collects all that is wrong with them.

    Args:
        takes_texts: Whether numbers may be texts, as in the environment.
        shows_values: Whether problems repeat values. Those of settings may be misplaced secrets.
    """

    def __init__(self, *, takes_texts: bool = False, shows_values: bool = True) -> None:
        self._takes_texts, self._shows_values = takes_texts, shows_values
        self.problems: list[Problem] = []

    def read(self, kind: type[Declared], values: Mapping[str, object], path: str = "") -> Declared | None:
        """Returns an object of a declaration; None if something is wrong, which :attr:`problems` then has."""
        known = {each.name: each for each in declared_fields(kind)}  # type: ignore[arg-type]
        before, found = len(self.problems), dict[str, Any]()
        for name in values:
            if name not in known:
                hint = did_you_mean(name, known) or f"known: {', '.join(known)}"
                self.problems.append(Problem(_below(path, name), "is not a known key", hint))
        for name, each in known.items():
            if name in values:
                found[each.attribute] = self._value(values[name], each.type, each.notes, _below(path, name))
            elif each.default is MISSING:
                problem = f"expected {_expected(each.type, each.notes)}, got nothing"
                self.problems.append(Problem(_below(path, name), problem))
        if len(self.problems) > before:
            return None
        try:
            return kind(**found)
        except ConfigError as error:
            self.problems.append(Problem(path, error.problem, error.hint))
        return None

    def _value(self, value: object, kind: Any, notes: tuple[object, ...], path: str) -> object:
        before = len(self.problems)
        try:
            for note in notes:
                if isinstance(note, Reads) and isinstance(value, str):
                    value = note.read(value)
            value = self._converted(value, kind, notes, path)
            for note in notes:
                if isinstance(note, Checks) and len(self.problems) == before:
                    value = note.check(value)
        except msgspec.ValidationError:
            got = f", got {value!r}" if self._shows_values else ""
            self.problems.append(Problem(path, f"expected {_expected(kind, notes)}{got}"))
        except ValueError as error:
            self.problems.append(Problem(path, str(error)))
        return value

    def _converted(self, value: object, kind: Any, notes: tuple[object, ...], path: str) -> object:
        origin = get_origin(kind) or kind
        if is_dataclass(kind) and isinstance(kind, type):
            return self.read(kind, _of_type(value, dict), path)
        if origin in (dict, Mapping):
            inner = _parts(get_args(kind)[1])
            given = _of_type(value, dict)
            return {name: self._value(each, *inner, _below(path, name)) for name, each in given.items()}
        if origin in (list, tuple, frozenset):
            inner, given = _parts(get_args(kind)[0]), _of_type(value, list, tuple)
            return origin(self._value(each, *inner, f"{path}[{at}]") for at, each in enumerate(given))
        if kind is Path:
            return Path(_of_type(value, str, Path))
        if self._takes_texts and kind is bool and isinstance(value, str):
            value = "true" if value.lower() in _YES else "false" if value.lower() in _NO else value
        limits = tuple(note for note in notes if isinstance(note, msgspec.Meta))
        declared = Annotated[(kind, *limits)] if limits else kind
        return msgspec.convert(value, declared, strict=not self._takes_texts and kind is not timedelta)


def _of_type(value: object, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        raise msgspec.ValidationError
    return value


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _parts(annotation: Any) -> tuple[Any, tuple[object, ...]]:
    """Returns a type without ``None`` and ``Annotated``, and what ``Annotated`` adds."""
    notes: tuple[object, ...] = ()
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation, *more = get_args(annotation)
            notes = (*more, *notes)
        elif origin in (Union, UnionType):
            [annotation] = (each for each in get_args(annotation) if each is not NoneType)
        else:
            return annotation, notes


def _expected(kind: Any, notes: tuple[object, ...]) -> str:
    """Says what a value must be."""
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(repr(each.value) for each in kind)
    if is_dataclass(kind):
        return "a table"
    limits = "".join(_limits(note) for note in notes if isinstance(note, msgspec.Meta))
    return f"{_WORDS[get_origin(kind) or kind]}{limits}"


_WORDS: Final[Mapping[Any, str]] = {
    bool: "true or false",
    dict: "a table",
    float: "a number",
    frozenset: "a list",
    int: "a whole number",
    list: "a list",
    Mapping: "a table",
    Path: "the name of a file or folder",
    str: "a text",
    timedelta: "a number of seconds",
    tuple: "a list",
}


def _limits(note: msgspec.Meta) -> str:
    if note.pattern is not None:
        return f" like {note.pattern}"
    if note.gt is not None:
        return f" above {note.gt}"
    if note.ge is None:
        return ""
    return f" from {note.ge} on" if note.le is None else f" from {note.ge} to {note.le}"


@cache
def _meanings(kind: type) -> dict[str, str]:
    """Returns the docstrings of the fields that a class declares itself."""
    [found] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    meanings, body = dict[str, str](), found.body if isinstance(found, ast.ClassDef) else []
    for each, after in pairwise(body):
        match each, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                meanings[name] = inspect.cleandoc(text)
    return meanings
