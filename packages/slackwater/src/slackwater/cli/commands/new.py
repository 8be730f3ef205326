"""``slackwater new``."""

import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from string import Template

import click

from slackwater.cli.pipeline_folders import ENTRY_POINTS, NAMESPACE
from slackwater.command.invocation import search_path_lines, setting, start_command
from slackwater.command.output import Output
from slackwater.protocol import InputError


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", metavar="NAME", help="Name of the pipeline.  [default: name of the folder]")
@setting("source", "The connector's topic.prefix.  [default: inv]")
@click.pass_context
def new(ctx: click.Context, folder: Path, name: str | None) -> None:
    """Create a working pipeline in DIR, with a view, its tests and the files of a Python package.

    Replace the example with your own tables in schema.sql (`slackwater schema pull` generates them) and your
    own views in views/. `slackwater test DIR` checks at any time whether the views pass the tests in tests/.

    DIR is also a Python project. You can build a wheel from it, install it like any other package, and run
    the pipeline by name and version. Needs no server. Nothing is overwritten: DIR must be new or empty.

    \b
    Example:
      slackwater new revenue
      slackwater test revenue

    For details see docs/packages.md.
    """
    settings, output = start_command(ctx), Output()
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty", "choose a folder that does not exist yet")
    name, source = name or folder.resolve().name, settings.source or "inv"
    if name == source:
        reason = (
            f"a pipeline named like its source {source!r} would write topics that are named like its tables"
        )
        raise InputError(reason, "give it another name with --name")
    files = pipeline_files(name, source, version("slackwater"))
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
        output.line(f"{folder / path}")
    output.line()
    output.line(f"next: slackwater test {folder}")
    output.lines(search_path_lines())


_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def pipeline_files(name: str, source: str, version: str) -> Mapping[str, str]:
    """Returns the text of each file, by its path in the folder.

    Args:
        name: Of the pipeline and of its distribution.
        source: The connector's ``topic.prefix``.
        version: Of Slackwater, the oldest one that the package is for.

    Raises:
        InputError: the name is not one that a distribution may have.
    """
    if not _NAME.fullmatch(name):
        hint = (
            "expected lower case letters and digits, with '-' or '_' between them; use --name for "
            "another name"
        )
        raise InputError(f"{name!r} is not a valid name of a pipeline", hint)
    module = name.replace("-", "_")
    values = {
        "name": name,
        "module": module,
        "package": f"{NAMESPACE}/{module}",
        "entry": f"{NAMESPACE}.{module}",
        "group": ENTRY_POINTS,
        "source": source,
        "version": version,
    }
    return {path: Template(text).substitute(values) for path, text in _FILES.items()}


_FILES = {
    "pipeline.toml": """\
name = "$name"
source = "$source"        # the connector's topic.prefix
emit = "latest"       # or "transactions": one state per source transaction

[outputs.revenue]
topic = "$name.revenue"
""",
    "schema.sql": """\
-- The tables that the views read.
-- Your own: slackwater schema pull --postgres-url URL --table S.T --output schema.sql

CREATE TABLE public.invoice (
    id bigint PRIMARY KEY,
    customer text NOT NULL,
    amount numeric(12, 2) NOT NULL,
    paid boolean NOT NULL
);
""",
    "views/revenue.sql": """\
-- The paid and open amounts of each customer.
SELECT TRANSACTIONALLY
    customer,
    count(*) AS invoices,
    coalesce(sum(amount) FILTER (WHERE paid), 0) AS paid,
    coalesce(sum(amount) FILTER (WHERE NOT paid), 0) AS open
FROM public.invoice
GROUP BY customer
""",
    "tests/revenue.yaml": """\
# Run by `slackwater test .` and by `pytest`.

an invoice is open until it is paid:
  - insert:
      public.invoice:
        - {id: 1, customer: ada, amount: 10.50, paid: false}
        - {id: 2, customer: ada, amount: 4.00, paid: false}
    expect:
      revenue:
        - {customer: ada, invoices: 2, paid: 0, open: 14.50}
  - update: {public.invoice: [{id: 1, paid: true}]}
    expect:
      revenue:
        - {customer: ada, invoices: 2, paid: 10.50, open: 4.00}

a customer without invoices is no customer:
  - insert: {public.invoice: [{id: 1, customer: bob, amount: 1, paid: true}]}
  - delete: {public.invoice: [{id: 1}]}
    expect: {revenue: []}
""",
    "README.md": """\
# $name

Views over the source `$source`, maintained by Slackwater.

- `pipeline.toml`: name, source, published states, output topics
- `schema.sql`: the tables as they are in the database
- `views/`: one file per view
- `tests/`: rows, and the expected results of the views

```
slackwater test .           # test the views, without servers
slackwater explain .        # show the stages that compute them
slackwater schema check .   # compare the declared tables with the database
slackwater run . --checkpoint DIR
```

`python -m build` builds a wheel into `dist/`. Put it beside Slackwater's wheels, which are in no package
index, and install it from there: `pip install --find-links DIST $name==0.1.0`. Then
`slackwater run $name==0.1.0` runs this version.

The workflow in `.github/` installs Slackwater from `wheels/`, which has to contain its wheels.
""",
    "pyproject.toml": """\
[project]
name = "$name"
version = "0.1.0"
description = "Views over the source $source."
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["slackwater>=$version"]

# By this name `slackwater run $name` finds the pipeline where it is installed.
[project.entry-points."$group"]
$name = "$entry"

[dependency-groups]
dev = ["build", "pytest"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
only-include = ["pipeline.toml", "schema.sql", "views"]

[tool.hatch.build.targets.wheel.sources]
"" = "$package"
""",
    ".github/workflows/test.yml": """\
name: test
on: [push, pull_request]
permissions:
  contents: read
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1  # v7.0.1
      - uses: actions/setup-python@5fda3b95a4ea91299a34e894583c3862153e4b97  # v7.0.0
        with:
          python-version: "3.11"
      # No package index has Slackwater. `make wheels` in its repository writes dist/: commit that as wheels/.
      - run: pip install --find-links wheels wheels/slackwater-[0-9]*.whl "slackwater[spark]>=$version"
      - run: pip install build pytest
      - run: slackwater explain .
      - run: pytest
      - run: python -m build --wheel
""",
    ".gitignore": """\
__pycache__/
.pytest_cache/
dist/
""",
}
