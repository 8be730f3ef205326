"""Reads ``certify.toml``, which specifies the output to be judged and what it is judged by.

The result is immutable. Relative paths are relative to the file.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Meta, ValidationError, convert

from slackwater_certify.errors import CertifyConfigError, wrong_key

FILE_NAME = "certify.toml"
Text = Annotated[str, Meta(min_length=1)]
_Part = TypeVar("_Part", "OutputSpecification", "SourceSpecification", "ViewSpecification", "Invariant")
_FORBIDDEN = re.compile(r"[^a-zA-Z0-9._\-]")
_LONGEST_TOPIC = 249
_QUOTED = r'"(?:[^"]|"")+"'
_QUOTED_NAME = re.compile(rf'({_QUOTED}|[^".][^.]*)\.({_QUOTED}|[^"].*)', re.DOTALL)


class OutputKind(StrEnum):
    """The kinds of outputs."""

    TOPIC = "topic"
    POSTGRES = "postgres"
    DELTA = "delta"
    ICEBERG = "iceberg"


class Format(StrEnum):
    """The format of the records of a topic."""

    JSON = "json"
    """Documents, with tombstones for deleted ones."""
    DEBEZIUM = "debezium"
    """Change events: ``after`` is the document, and ``op`` d means that it was deleted."""


class Scope(StrEnum):
    """What an invariant applies to: each document, or the whole state."""

    DOCUMENT = "document"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class OutputSpecification:
    """The output to be judged."""

    kind: OutputKind
    name: Text
    """A topic, ``schema.table``, or the folder or metadata file of a lake table."""
    commits: Text | None = None
    """The topic with commit records, if there is one."""
    lsn_header: Text | None = None
    """The record header with the commit LSN in decimal digits, if there is one."""
    only: Mapping[str, Text] = field(default_factory=dict)
    """In a topic of several outputs: by record header the value that it has in the records of this one."""
    ledger: Text | None = None
    """Where the commit of a table is recorded. For a table in PostgreSQL, this is its pipeline, which has a
    row in ``slackwater.ledger``; for a lake table, the folder or metadata file of the ledger's table."""
    table: Text | None = None
    """The name of a lake table in its ledger."""
    format: Format = Format.JSON
    """The format of the records of a topic."""


@dataclass(frozen=True, slots=True)
class SourceSpecification:
    """The database whose committed states the output is compared with."""

    name: Text
    """The connector's ``topic.prefix``."""
    schema: Path
    """A file with CREATE TABLE statements."""
    transactions: str = ""
    """The topic with BEGIN and END; the default is Debezium's name."""
    topics: Mapping[str, Text] = field(default_factory=dict)
    """By table: the topic, if a transform routes its changes elsewhere. Several tables may share one."""

    def __post_init__(self) -> None:
        """Completes omitted values, and removes the quotes from names."""
        object.__setattr__(self, "transactions", self.transactions or f"{self.name}.transaction")
        object.__setattr__(self, "topics", {_full_name(name): t for name, t in self.topics.items()})

    @property
    def cuts(self) -> str:
        """The topic that records what operators have skipped; only sources of Slackwater have one."""
        return f"{self.name}.slackwater.cuts"

    def topic(self, table: str) -> str:
        """Returns the topic with the changes of a table, ``schema.table``."""
        return self.topics.get(table) or _FORBIDDEN.sub(_underscores, f"{self.name}.{table}")[:_LONGEST_TOPIC]


def _underscores(found: re.Match[str]) -> str:
    """Replaces what Kafka does not allow in topic names as Debezium does: each unit of UTF-16."""
    return "_" * (len(found[0].encode("utf-16-le")) // 2)


def _full_name(written: str) -> str:
    """Returns ``schema.table`` for a name whose parts may be in SQL's quotes."""
    found = _QUOTED_NAME.fullmatch(written)
    parts = () if found is None else found.groups()
    return ".".join(p[1:-1].replace('""', '"') if p[0] == '"' else p for p in parts) or written


@dataclass(frozen=True, slots=True)
class ViewSpecification:
    """The contents that the output should have for a given state of the database."""

    sql: Path
    key: tuple[str, ...]
    """The columns of the output that identify a document."""
    unordered: frozenset[str] = frozenset()
    """The list columns whose order is ignored."""
    rows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By table: the columns that identify the document of a row. Empty: the view is evaluated as a whole."""
    quarantine: bool = False
    """Whether there must be no document whose rows the view fails on; else the judge fails, too."""

    def __post_init__(self) -> None:
        """Removes the quotes from names."""
        object.__setattr__(self, "rows", {_full_name(name): names for name, names in self.rows.items()})


@dataclass(frozen=True, slots=True)
class Invariant:
    """SQL that is true of every committed state."""

    name: Text
    holds: Text
    scope: Scope = Scope.DOCUMENT
    error: Text | None = None
    """SQL that measures how wrong it is."""


@dataclass(frozen=True, slots=True)
class Specification:
    """The contents of ``certify.toml``."""

    file: Path
    output: OutputSpecification
    source: SourceSpecification
    view: ViewSpecification
    invariants: tuple[Invariant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Addresses of servers; only those that a specification needs are required."""

    bootstrap: str | None = None
    """The brokers that have the topics of the source and of outputs."""
    dsn: str | None = None
    """The source database, for the final state, and by default for an output of kind ``postgres``."""
    output_dsn: str | None = None
    """The database of an output of kind ``postgres``, if it is not the source database."""
    kafka: Mapping[str, str] = field(default_factory=dict)
    """Other librdkafka settings."""
    registry: str | None = None
    """The schema registry, if records of output topics refer to schemas."""
    registry_user: str | None = None
    """The user of the registry; None: no authentication."""
    registry_password: str | None = field(default=None, repr=False)
    """The user's password."""

    def brokers(self, purpose: str) -> dict[str, str]:
        """Returns the librdkafka settings for connecting to the brokers.

        Raises:
            CertifyConfigError: no brokers are given.
        """
        if self.bootstrap is None:
            raise _missing("bootstrap", purpose)
        return {"bootstrap.servers": self.bootstrap, **self.kafka}

    def output_database(self) -> str:
        """Returns the database of an output table.

        Raises:
            CertifyConfigError: no database is given.
        """
        found = self.output_dsn or self.dsn
        if found is None:
            raise _missing("dsn", "to read the output table")
        return found


def load_specification(path: Path | str) -> Specification:
    """Reads a ``certify.toml`` file, or the one in a folder.

    Raises:
        CertifyConfigError: the file is missing or not TOML, or a key is missing, unknown or wrong.
    """
    file = Path(path)
    file = file / FILE_NAME if file.is_dir() else file
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise wrong_key(str(file), "", error.strerror or str(error)) from error
    except ValueError as error:
        raise wrong_key(str(file), "", f"not TOML: {error}") from error
    return _specification(file, content)


def _missing(name: str, purpose: str) -> CertifyConfigError:
    return CertifyConfigError(f"the certifier needs {name} {purpose}", f"give --{name}")


def _specification(file: Path, content: dict[str, Any]) -> Specification:
    output = _read(OutputSpecification, file, "output", content.get("output"))
    is_in_ledger = output.kind is not OutputKind.POSTGRES and output.ledger is not None
    if is_in_ledger != (output.table is not None):
        problem = "missing; expected the name" if is_in_ledger else "remove it; it is the name"
        raise wrong_key(str(file), "output.table", f"{problem} of a lake's table in its ledger")
    source = _read(SourceSpecification, file, "source", content.get("source"))
    view = _read(ViewSpecification, file, "view", content.get("view"))
    if not view.key:
        raise wrong_key(str(file), "view.key", "expected at least one column")
    if view.quarantine and not view.rows:
        raise wrong_key(str(file), "view.quarantine", "needs [view.rows], by which documents fail one by one")
    for table, names in view.rows.items():
        if len(names) != len(view.key):
            problem = f"expected as many columns as the view's key has, {len(view.key)}, got {len(names)}"
            raise wrong_key(str(file), f'view.rows."{table}"', problem)
    invariants = content.get("invariant", [])
    if not isinstance(invariants, list):
        raise wrong_key(str(file), "invariant", "expected tables [[invariant]]")
    read = tuple(_read(Invariant, file, f"invariant[{i}]", each) for i, each in enumerate(invariants))
    _check_keys(file, "", content, ("output", "source", "view", "invariant"))
    return Specification(file, output, source, view, read)


def _read(kind: type[_Part], file: Path, path: str, content: object) -> _Part:
    """Converts a TOML table to a part of the specification; unknown keys are an error."""
    if not isinstance(content, dict):
        missing = f"missing; expected a table [{path}]" if content is None else "expected a table"
        raise wrong_key(str(file), path, missing)
    hints, found = get_type_hints(kind, include_extras=True), {}
    _check_keys(file, path, content, hints)
    for each in fields(kind):
        has_default = each.default is not MISSING or each.default_factory is not MISSING
        if each.name in content or not has_default:
            value, hint = content.get(each.name), hints[each.name]
            try:
                found[each.name] = convert(value, hint, dec_hook=lambda _, name: _file(file, name))
            except ValidationError as error:
                problem = str(error) if hint is Path and value else f"expected {_wanted(hint)}, got {value!r}"
                raise wrong_key(str(file), f"{path}.{each.name}", problem) from error
    return kind(**found)


def _check_keys(file: Path, path: str, content: Mapping[str, object], known: Iterable[str]) -> None:
    unknown = sorted(content.keys() - set(known))
    if unknown:
        key = f"{path}.{unknown[0]}" if path else unknown[0]
        raise wrong_key(str(file), key, f"unknown key; the keys are {', '.join(sorted(known))}")


def _file(file: Path, name: str) -> Path:
    if not (found := file.parent / name).is_file():
        raise ValueError(f"there is no file {found}")
    return found


def _wanted(hint: Any) -> str:
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return f"one of {', '.join(hint)}"
    if get_origin(hint) is Mapping:
        return "a table of texts" if get_args(hint)[1] is Text else "a table of lists of column names"
    return "a list of column names" if get_origin(hint) in (tuple, frozenset) else "a text"
