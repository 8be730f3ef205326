"""``slackwater test``."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slackwater.cli.main import settings_command
from slackwater.command.output import Output
from slackwater.protocol import InputError
from slackwater.settings.model import Settings

if TYPE_CHECKING:  # it loads DuckDB; the help text does not need it
    from slackwater.pipeline.testing.cases import ViewCase


@settings_command()
@click.argument(
    "folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(file_okay=False, path_type=Path)
)
def test(settings: Settings, folders: tuple[Path, ...]) -> int:
    """Run the tests of a pipeline's views, without servers.

    Tests are the files DIR/tests/*.yaml (or .yml, .json). They contain transactions of plain rows, and the
    documents that the views show after them. The tests use the engine of `slackwater run`, with rows and
    state in memory.

    \b
    A file contains named tests, and each test is a list of transactions:
      an invoice counts:
        - insert:
            public.invoice:
              - {id: 1, customer: ada, amount: 10.50}
          expect:
            revenue:
              - {customer: ada, amount: 10.50}
        - update: {public.invoice: [{id: 1, amount: 12}]}     # the primary key identifies the row
          delete: {public.invoice: [{id: 2}]}
          sql: "INSERT INTO ..."                               # or the name of a .sql file

    The exit code is 0 if all tests pass, and 1 otherwise. `pytest DIR` runs the same files as well as Python
    tests.

    \b
    Example:
      slackwater test pipelines/orders

    For details see docs/packages.md.
    """
    output, passed, failed = Output(), 0, 0
    for folder in folders:
        for case, problem in _run(folder):
            passed, failed = passed + (not problem), failed + bool(problem)
            output.line(f"{'FAILED' if problem else 'ok':<6}  {case.place}  {case.name}")
            for line in problem.splitlines():
                output.line(f"        {line}")
    output.line(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _run(folder: Path) -> "Iterator[tuple[ViewCase, str]]":
    """Yields each test and what is wrong, if something is."""
    from slackwater.api import ViewTest
    from slackwater.pipeline.testing.cases import read_cases
    from slackwater.pipeline.testing.locations import case_files
    from slackwater.protocol import SlackwaterError

    test = ViewTest(folder)
    files = case_files(folder)
    if not files:
        hint = "docs/packages.md describes how to write tests"
        raise InputError(f"{folder / 'tests'} contains no tests (no .yaml, .yml or .json file)", hint)
    for case in (case for path in files for case in read_cases(path)):
        problem = ""
        try:
            case.run(test)
        except (AssertionError, SlackwaterError) as error:
            problem = str(error)
        yield case, problem
