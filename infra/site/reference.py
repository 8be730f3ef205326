"""The reference pages: settings, commands, SQL functions, metrics, errors, each from the code it describes.

They are made when the site is built, and are not committed: docs/reference/README.md says how to see the same
without the site. The same code gives the same text.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from datetime import timedelta
from importlib import import_module
from itertools import pairwise, takewhile
from pathlib import Path

import click

from slackwater.cli.diagnosis import Cause
from slackwater.cli.main import cli
from slackwater.command import boundary
from slackwater.protocol import metrics
from slackwater.settings.loading import SettingField, setting_fields
from slackwater.sql.frontend.expressions import FunctionFacts, function_facts
from slackwater.sql.limits import open_connection

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- `make docs` writes this page from the code. -->\n\n"
WIDTH = 110

ERROR_MODULES = {
    "Every package": "slackwater.protocol.errors",
    "Pipelines (`slackwater run`, `slackwater.api`)": "slackwater.outputs.contract",
    "Views (`slackwater.sql`)": "slackwater.sql.errors",
    "Consumers and producers (`slackwater.client`)": "slackwater.client.errors",
    "Messages of services (`slackwater_messaging`)": "slackwater_messaging",
    "The sidecar": "slackwater_sidecar.consumption",
    "Change events (`slackwater.cdc`)": "slackwater.cdc.errors",
    "The cut log and Redis (`slackwater.cuts`)": "slackwater.cuts.errors",
    "The certifier (`slackwater_certify`)": "slackwater_certify.errors",
    "The command": "slackwater.settings.errors",
}
"""The modules whose docstrings draw the trees of errors, by heading."""


def reference_pages() -> dict[str, str]:
    """Returns the text of each page by its name in docs/reference/."""
    return {
        "settings.md": settings_page(),
        "commands.md": commands_page(),
        **{f"commands/{name}.md": page for name, page in command_pages().items()},
        "sql-functions.md": functions_page(),
        "metrics.md": metrics_page(),
        "errors.md": errors_page(),
    }


def settings_page() -> str:
    """Returns all settings, by section."""
    lines = [
        "# Settings\n",
        NOTE + "You can give a setting in three ways. A flag of a command overrides an environment variable, "
        "which overrides the file `slackwater.toml`. `slackwater config` shows the current value of every "
        "setting, and where it comes from. Secrets are masked.\n",
        '```toml\n# slackwater.toml\n[kafka]\nbootstrap = "localhost:9092"\n\n[redis]\n'
        'url = "redis://localhost:6379"\n```\n',
        "The environment variable of a setting is `SLACKWATER_`, its section, one or two underscores, and "
        "its key, all in capitals: `SLACKWATER_KAFKA_BOOTSTRAP`. Durations are numbers of seconds. *Secret* "
        "settings can also be given as the name of a file, with `_file` at the end: "
        "`kafka.sasl_password_file`, `SLACKWATER_KAFKA_SASL_PASSWORD_FILE`.\n",
    ]
    section = None
    for field in setting_fields():
        name = field.path.rpartition(".")[0]
        if name != section:
            section = name
            lines += [f"\n## {f'[{name}]' if name else 'At the top of the file'}\n"]
            lines += ["| setting | default | meaning |\n|---|---|---|"]
        meaning = f"{field.declared.meaning}{' *Secret.*' if field.is_secret else ''}"
        lines.append(f"| {_setting(field)} | {_default(field)} | {_cell(meaning)} |")
    return _page(lines)


def metrics_page() -> str:
    """Returns all metrics, by who exposes them."""
    lines = [
        "# Metrics\n",
        NOTE + "What sidecars, runs of pipelines and the control plane answer at `/metrics`, in Prometheus' "
        "text format. The lists are closed. Labels are bounded: sources, pipelines, views, states, kinds; "
        "never a transaction, an offset or a text. [observability.md](../observability.md) says how they "
        "are asked for, and which of them are worth an alert.\n",
    ]
    for heading, text, listed in _METRICS:
        lines += [f"\n## {heading}\n", f"{text}\n", "| metric | kind | labels | meaning |\n|---|---|---|---|"]
        lines += [f"| `{m.name}` | {m.kind} | {', '.join(m.labels)} | {_cell(m.help)} |" for m in listed]
    return _page(lines)


_METRICS = (
    (
        "A sidecar",
        "Answered where `sidecar.http` (`--http`) says. One series per source that it follows.",
        metrics.SIDECAR_METRICS,
    ),
    (
        "A run of a pipeline",
        "Answered where `run.http` (`slackwater run --http`) says. All counters begin at 0 with each run.",
        metrics.RUN_METRICS,
    ),
    (
        "A control plane",
        "Answered where `control.listen` says, of the whole cluster. A series per view and per pipeline: a "
        "thousand views are a thousand series. Prometheus sends a token as every other client "
        "(`authorization` in its configuration).",
        metrics.CONTROL_METRICS,
    ),
)


def _setting(field: SettingField) -> str:
    short = [name for name in field.variables if name.count("_") == 1 and "." in field.path]
    return f"`{field.path}`{f'<br>(also `{short[0]}`)' if short else ''}"


def _default(field: SettingField) -> str:
    value = field.declared.default
    if value in (None, "", {}, (), frozenset()):
        return ""
    if isinstance(value, timedelta):
        return f"`{value.total_seconds():g}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def commands_page() -> str:
    """Returns the help text of the command, and the list of the pages of its commands."""
    lines = [
        "# Commands\n",
        NOTE
        + "This is the output of `slackwater --help`; each command has a page below. Every command exits "
        f"with one of these codes: {_exit_codes()}. [Settings](settings.md) lists the settings that you can "
        "give in the environment or in `slackwater.toml` instead of a flag.\n",
        f"```text\n{_context('slackwater', cli, None).get_help()}\n```\n",
        "```{toctree}\n:glob:\n:titlesonly:\n\ncommands/*\n```",
    ]
    return _page(lines)


def command_pages() -> dict[str, str]:
    """Returns the page of each command by its name: its help text, and those of its parts."""
    context = _context("slackwater", cli, None)
    return {
        name: _page([*_help(("slackwater", name), command, context, "#")])
        for name in cli.list_commands(context)
        if (command := cli.get_command(context, name)) is not None and not command.hidden
    }


def _exit_codes() -> str:
    found = re.search(r"^Exit codes: (.+)\.$", boundary.__doc__ or "", re.MULTILINE)
    return found.group(1) if found else ""


def _help(path: tuple[str, ...], command: click.Command, parent: click.Context, level: str) -> Iterator[str]:
    context = _context(path[-1], command, parent)
    yield f"{level} {' '.join(path)}\n"
    yield f"{NOTE if level == '#' else ''}```text\n{context.get_help()}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            each = command.get_command(context, name)
            if each is not None and not each.hidden:
                yield from _help((*path, name), each, context, "##")


def _context(name: str, command: click.Command, parent: click.Context | None) -> click.Context:
    # With the settings that it is called with: click keeps the first help option that it makes.
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    return click.Context(command, info_name=name, parent=parent, **settings)


def functions_page() -> str:
    """Returns the functions that a view may call, and those that it may not."""
    facts = function_facts()
    with open_connection() as connection:
        version = connection.execute("SELECT version()").fetchall()[0][0]
        rows = connection.execute(
            "SELECT function_name, function_type, max(description), max(examples[1]) FROM duckdb_functions() "
            "WHERE function_type IN ('scalar', 'aggregate', 'window', 'macro') "
            "AND regexp_full_match(function_name, '[a-z][a-z0-9_]*') "
            "GROUP BY ALL ORDER BY ALL"
        ).fetchall()
    lines = [
        "# SQL functions\n",
        NOTE
        + "A view may call every function of DuckDB whose result depends on its arguments alone. This is "
        f"the list of DuckDB {version}, with which this version is tested; "
        "[views.md](../views.md#what-a-view-may-be) says what else a view may contain.\n",
    ]
    kept = [row for row in rows if not _is_refused(row[0], facts)]
    for heading, text, kind in (
        ("Aggregates", _AGGREGATES, "aggregate"),
        ("Window functions", _WINDOWS, "window"),
        ("Functions of one row", "", "scalar"),
    ):
        lines += [
            f"\n## {heading}\n",
            *([text] if text else []),
            "| function | what it gives | example |\n|---|---|---|",
        ]
        lines += [_function(*row) for row in kept if _kind(row, facts) == kind]
    refused = sorted({row[0] for row in rows if _is_refused(row[0], facts)} | facts.row_makers)
    lines += [
        "\n## Functions that a view may not call\n",
        "Their results depend on the time, on chance, on the session or on its settings, or they make "
        "several rows of one. A view that calls one of them is refused with its place in the text.\n",
        ", ".join(f"`{name}`" for name in refused),
    ]
    return _page(lines)


_AGGREGATES = (
    "`count`, `sum`, `avg` of integers and decimals, `min`, `max`, `count(DISTINCT …)` are accumulated: "
    "a change costs the same, however many rows its group has. All others are computed from all rows of a "
    "group when one of them changed "
    "([how a view is kept up to date](../views.md#how-a-view-is-kept-up-to-date)).\n"
)
_WINDOWS = "A window needs a PARTITION BY. Aggregates may be used as window functions, too.\n"


def _is_refused(name: str, facts: FunctionFacts) -> bool:
    return name in facts.impure or name in facts.row_makers


def _kind(row: tuple[str, str, str | None, str | None], facts: FunctionFacts) -> str:
    name, kind, _, _ = row
    if kind != "macro":
        return kind
    return "aggregate" if name in facts.aggregates else "scalar"


def _function(name: str, _kind: str, description: str | None, example: str | None) -> str:
    return f"| `{name}` | {_cell(description or '')} | {f'`{_cell(example)}`' if example else ''} |"


def errors_page() -> str:
    """Returns exit codes, what doctor finds, and the trees of errors."""
    lines = [
        "# Errors\n",
        NOTE + "A message states what happened, where, and what to do about it. Commands print it on "
        f"standard error and exit with one of these codes: {_exit_codes()}. With `--debug` they also print "
        "the traceback.\n",
        "\n## Findings of `slackwater doctor`\n",
        "`slackwater doctor --json` identifies each finding by one of these causes. The text output "
        "explains the cause, with the evidence and the commands that help. The [runbooks](../runbooks.md) "
        "give further instructions.\n",
        "| cause | meaning |\n|---|---|",
        *(f"| `{name}` | {_cell(text)} |" for name, text in _causes()),
        "\n## Errors in Python\n",
        "`SlackwaterError` is the root of all errors, and its subclasses are the ways to react to one: a "
        "`ConfigError` requires a different setting or argument, an `InputError` different data, a "
        "`StateError` an investigation, and an `UnavailableError` only another attempt. The other classes "
        "are for callers that react to one of them in particular.\n",
    ]
    for heading, module in ERROR_MODULES.items():
        lines += [f"\n### {heading}\n", f"```text\n{_tree(module)}\n```"]
    return _page(lines)


def _causes() -> Iterator[tuple[str, str]]:
    """Gives the causes of doctor, each with the docstring below it, or with its name in words."""
    (declared,) = ast.parse(inspect.getsource(Cause)).body
    for node, after in pairwise([*ast.iter_child_nodes(declared), ast.Pass()]):
        match node, after:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                yield Cause[name].value, text
            case ast.Assign(targets=[ast.Name(id=name)]), _:
                yield Cause[name].value, f"{Cause[name].value.replace('_', ' ').capitalize()}."


def _tree(module: str) -> str:
    """Returns the tree of errors that a module's docstring draws."""
    after = (inspect.getdoc(import_module(module)) or "").partition("::\n")[2].lstrip("\n").splitlines()
    drawn = takewhile(lambda line: not line.strip() or line.startswith("    "), after)
    return "\n".join(line.removeprefix("    ") for line in drawn).rstrip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("``", "`").replace("<", "&lt;")


def _page(lines: list[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"
