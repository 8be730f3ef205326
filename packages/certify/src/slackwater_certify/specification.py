"""Reads ``certify.toml``: the output to be judged, and by what.

``certify.toml`` as frozen values; relative paths count from the file.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from slackwater_certify.errors import CertifyConfigError, wrong_key

FILE_NAME = "certify.toml"
_FORBIDDEN = re.compile(r"[^a-zA-Z0-9._\-]")
_LONGEST_TOPIC = 249
_QUOTED = r'"(?:[^"]|"")+"'
_QUOTED_NAME = re.compile(rf'({_QUOTED}|[^".][^.]*)\.({_QUOTED}|[^"].*)', re.DOTALL)


class OutputKind(StrEnum):
    """Names the kind of place where an output is."""

    TOPIC = "topic"
    POSTGRES = "postgres"
    DELTA = "delta"
    ICEBERG = "iceberg"


class Format(StrEnum):
    """Form of the records of a topic."""

    JSON = "json"
    """Documents; a tombstone for one that vanishes."""
    DEBEZIUM = "debezium"
    """Change events: ``after`` is the document, ``op`` d says that it vanishes."""


class Scope(StrEnum):
    """Subject of an invariant: each document, or the state as a whole."""

    DOCUMENT = "document"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class OutputSpecification:
    """Describes the output that is judged."""

    kind: OutputKind
    name: str
    """Topic; ``schema.table``; folder or metadata file of a lake table."""
    commits: str | None = None
    """Topic with commit records, if there is one."""
    lsn_header: str | None = None
    """Record header with the commit LSN in decimal digits, if there is one."""
    ledger: str | None = None
    """What says at which commit a table is: of a table in PostgreSQL its pipeline, which has a row in
    ``slackwater.ledger``; of a lake table the folder or metadata file of another one."""
    table: str | None = None
    """The name of the table in that one, of a lake."""
    format: Format = Format.JSON
    """Of the records of a topic."""


@dataclass(frozen=True, slots=True)
class SourceSpecification:
    """Describes the database whose committed states are the measure."""

    name: str
    """The connector's ``topic.prefix``."""
    schema: Path
    """File with CREATE TABLE statements."""
    transactions: str
    """Topic with BEGIN and END."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Table to topic, for tables whose changes a transform sends elsewhere; several may share one."""

    @property
    def cuts(self) -> str:
        """Topic with what operators have skipped; only sources of Slackwater have one."""
        return f"{self.name}.slackwater.cuts"

    def topic(self, table: str) -> str:
        """Topic with the changes of a table, ``schema.table``."""
        return self.topics.get(table) or _FORBIDDEN.sub(_underscores, f"{self.name}.{table}")[:_LONGEST_TOPIC]


def _underscores(found: re.Match[str]) -> str:
    """Debezium replaces what Kafka does not allow in the names of topics, unit by unit of UTF-16."""
    return "_" * (len(found[0].encode("utf-16-le")) // 2)


def _full_name(written: str) -> str:
    """Returns ``schema.table`` for a name of which SQL's quotes may surround the parts."""
    found = _QUOTED_NAME.fullmatch(written)
    parts = () if found is None else found.groups()
    return ".".join(p[1:-1].replace('""', '"') if p[0] == '"' else p for p in parts) or written


@dataclass(frozen=True, slots=True)
class ViewSpecification:
    """Contents that the output should have, given a state of the database."""

    sql: Path
    key: tuple[str, ...]
    """Columns of the output that identify a document."""
    unordered: frozenset[str] = frozenset()
    """List columns whose order does not count."""
    rows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By table: the columns that name the document a row belongs to. Empty: evaluate the view whole."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """SQL that is true of every committed state."""

    name: str
    holds: str
    scope: Scope = Scope.DOCUMENT
    error: str | None = None
    """SQL that says how wrong it is."""


@dataclass(frozen=True, slots=True)
class Specification:
    """Holds everything that ``certify.toml`` says."""

    file: Path
    output: OutputSpecification
    source: SourceSpecification
    view: ViewSpecification
    invariants: tuple[Invariant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Addresses; only those that a specification needs have to be given."""

    bootstrap: str | None = None
    """Brokers with the source's topics and with output topics."""
    dsn: str | None = None
    """The source database, for the final state; also where an output of kind ``postgres`` is."""
    output_dsn: str | None = None
    """Where an output of kind ``postgres`` is, if not in the source database."""
    kafka: Mapping[str, str] = field(default_factory=dict)
    """Other librdkafka settings."""
    registry: str | None = None
    """The schema registry of output topics whose records name schemas."""
    registry_user: str | None = None
    """The user there; None: no authentication."""
    registry_password: str | None = field(default=None, repr=False)
    """The user's password."""

    def brokers(self, purpose: str) -> dict[str, str]:
        """Returns the librdkafka settings by which the brokers are reached.

        Raises:
            CertifyConfigError: nobody gave them.
        """
        if self.bootstrap is None:
            raise _missing("bootstrap", purpose)
        return {"bootstrap.servers": self.bootstrap, **self.kafka}

    def output_database(self) -> str:
        """Returns where an output table is.

        Raises:
            CertifyConfigError: nobody gave it.
        """
        found = self.output_dsn or self.dsn
        if found is None:
            raise _missing("dsn", "to read the output table")
        return found


def load_specification(path: Path | str) -> Specification:
    """Reads a ``certify.toml``, or the one in a folder.

    Raises:
        CertifyConfigError: the file is missing, no TOML, or a key is missing, unknown or wrong.
    """
    file = Path(path)
    file = file / FILE_NAME if file.is_dir() else file
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise wrong_key(str(file), "", error.strerror or str(error)) from error
    except ValueError as error:
        raise wrong_key(str(file), "", f"not TOML: {error}") from error
    return _specification(file, _Section(file, "", content))


def _missing(name: str, purpose: str) -> CertifyConfigError:
    return CertifyConfigError(f"the certifier needs {name} {purpose}", f"give --{name}")


def _specification(file: Path, root: "_Section") -> Specification:
    output, source, view = root.section("output"), root.section("source"), root.section("view")
    invariants = root.sections("invariant")
    root.end()
    prefix = source.text("name")
    kind = OutputKind(output.choice("kind", OutputKind))
    is_in_ledger = kind is not OutputKind.POSTGRES and output.optional_text("ledger") is not None
    specification = Specification(
        file=file,
        output=OutputSpecification(
            kind=kind,
            name=output.text("name"),
            commits=output.optional_text("commits"),
            lsn_header=output.optional_text("lsn_header"),
            ledger=output.optional_text("ledger"),
            table=output.text("table") if is_in_ledger else None,
            format=Format(output.choice("format", Format, default=Format.JSON)),
        ),
        source=SourceSpecification(
            name=prefix,
            schema=source.path("schema"),
            transactions=source.optional_text("transactions") or f"{prefix}.transaction",
            topics={_full_name(name): topic for name, topic in source.texts("topics").items()},
        ),
        view=ViewSpecification(
            sql=view.path("sql"),
            key=view.names("key", at_least=1),
            unordered=frozenset(view.names("unordered")),
            rows={
                _full_name(name): columns
                for name, columns in view.lists("rows", len(view.names("key"))).items()
            },
        ),
        invariants=tuple(_invariant(each) for each in invariants),
    )
    for section in (output, source, view):
        section.end()
    return specification


def _invariant(section: "_Section") -> Invariant:
    invariant = Invariant(
        name=section.text("name"),
        holds=section.text("holds"),
        scope=Scope(section.choice("scope", Scope, default=Scope.DOCUMENT)),
        error=section.optional_text("error"),
    )
    section.end()
    return invariant


class _Section:
    """Asks a TOML table for its keys; unknown ones are an error."""

    def __init__(self, file: Path, path: str, content: object) -> None:
        self._file = file
        self._path = path
        self._asked: set[str] = set()
        if not isinstance(content, dict):
            raise wrong_key(str(file), path, "expected a table")
        self._content: dict[str, Any] = content

    def section(self, key: str) -> "_Section":
        if key not in self._content:
            raise self._error(key, f"missing; expected a table [{self._dotted(key)}]")
        return _Section(self._file, self._dotted(key), self._get(key))

    def sections(self, key: str) -> list["_Section"]:
        found = self._get(key)
        if found is None:
            return []
        if not isinstance(found, list):
            raise self._error(key, f"expected tables [[{self._dotted(key)}]]")
        return [_Section(self._file, f"{self._dotted(key)}[{i}]", each) for i, each in enumerate(found)]

    def text(self, key: str) -> str:
        found = self._get(key)
        if not isinstance(found, str) or not found:
            raise self._error(key, f"expected a text, got {found!r}")
        return found

    def optional_text(self, key: str) -> str | None:
        return None if self._get(key) is None else self.text(key)

    def choice(self, key: str, kinds: type[StrEnum], default: str | None = None) -> str:
        found = self._get(key)
        found = default if found is None else found
        if found not in list(kinds):
            raise self._error(key, f"expected one of {', '.join(kinds)}, got {found!r}")
        return str(found)

    def path(self, key: str) -> Path:
        file = self._file.parent / self.text(key)
        if not file.is_file():
            raise self._error(key, f"there is no file {file}")
        return file

    def names(self, key: str, at_least: int = 0) -> tuple[str, ...]:
        return self._names(key, self._get(key), at_least)

    def texts(self, key: str) -> dict[str, str]:
        found = self._get(key)
        if found is None:
            return {}
        if not isinstance(found, dict) or not all(isinstance(text, str) and text for text in found.values()):
            raise self._error(key, f"expected a table [{self._dotted(key)}] of texts, got {found!r}")
        return found

    def lists(self, key: str, length: int) -> dict[str, tuple[str, ...]]:
        found = self._get(key)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise self._error(key, f"expected a table [{self._dotted(key)}]")
        named = {table: self._names(f'{key}."{table}"', names, 1) for table, names in found.items()}
        for table, names in named.items():
            if len(names) != length:
                problem = f"expected as many columns as the view's key has, {length}, got {len(names)}"
                raise self._error(f'{key}."{table}"', problem)
        return named

    def end(self) -> None:
        unknown = sorted(self._content.keys() - self._asked)
        if unknown:
            known = ", ".join(sorted(self._asked))
            raise self._error(unknown[0], f"unknown key; the keys are {known}")

    def _names(self, key: str, found: object, at_least: int) -> tuple[str, ...]:
        found = [] if found is None else found
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise self._error(key, f"expected a list of column names, got {found!r}")
        if len(found) < at_least:
            raise self._error(key, "expected at least one column")
        return tuple(found)

    def _get(self, key: str) -> object:
        self._asked.add(key)
        return self._content.get(key)

    def _dotted(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _error(self, key: str, problem: str) -> CertifyConfigError:
        return wrong_key(str(self._file), self._dotted(key), problem)
