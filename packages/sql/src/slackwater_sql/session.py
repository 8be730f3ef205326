"""DuckDB connections as views need them: one thread, in memory, closed to files and network, UTC."""

import re
from dataclasses import dataclass
from functools import lru_cache

import duckdb

from slackwater_sql.limits import DEFAULT_LIMITS, StatementLimits

_IMPURE_AGGREGATES = frozenset({"reservoir_quantile"})  # samples at random, but is not marked as volatile
_IMPURE_BY_PARAMETERS = frozenset({("age", 1)})  # age(x) is measured from today
_ROW_MAKERS = frozenset({"unnest"})
_CALL = re.compile(r'"?(\w+)"?\(')
_PLAIN_KEYWORDS = frozenset(
    {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}
)


def open_connection(limits: StatementLimits = DEFAULT_LIMITS) -> duckdb.DuckDBPyConnection:
    """A new in-memory database that reads no file, loads no extension and gives the same answer every time.

    Args:
        limits: Its memory is DuckDB's limit for intermediate results; nothing is spilled to disk.
    """
    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "async_threads": 0,  # they read files
            "memory_limit": limits.duckdb_memory,
            "temp_directory": "",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET enable_external_access = false")
    return connection


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """What DuckDB knows of its functions, macros looked through.

    Attributes:
        aggregates: Names of functions that compute one value of many rows.
        impure: Names whose result depends on time, chance, session or settings.
        row_makers: Names that make several rows of one.
    """

    aggregates: frozenset[str]
    impure: frozenset[str]
    row_makers: frozenset[str]

    def is_impure(self, name: str, parameters: int) -> bool:
        """A call with so many arguments is not a pure function of them."""
        return name in self.impure or (name, parameters) in _IMPURE_BY_PARAMETERS


@lru_cache(maxsize=1)
def function_facts() -> FunctionFacts:
    """The facts of the installed DuckDB; read once per process."""
    with open_connection() as connection:
        functions = connection.execute(
            "SELECT function_name, function_type, stability, macro_definition FROM duckdb_functions()"
        ).fetchall()
    aggregates = {name for name, kind, _, _ in functions if kind == "aggregate"}
    impure = {
        name for name, kind, stability, _ in functions if kind == "scalar" and stability != "CONSISTENT"
    }
    macros = [(name, definition) for name, kind, _, definition in functions if kind == "macro"]
    return FunctionFacts(
        aggregates=_closed_over_macros(aggregates, macros),
        impure=_closed_over_macros(impure | _IMPURE_AGGREGATES | _PLAIN_KEYWORDS, macros),
        row_makers=_closed_over_macros(set(_ROW_MAKERS), macros),
    )


def _closed_over_macros(names: set[str], macros: list[tuple[str, str]]) -> frozenset[str]:
    """The names, with all macros whose definition uses one of them, directly or through other macros."""
    names = set(names)
    while True:
        found = {
            name
            for name, definition in macros
            if name not in names
            and (
                not names.isdisjoint(_CALL.findall(definition))
                or _PLAIN_KEYWORDS & names & _words(definition)
            )
        }
        if not found:
            return frozenset(names)
        names |= found


def _words(definition: str) -> set[str]:
    return set(re.findall(r"\w+", definition))
