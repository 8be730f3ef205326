"""``python -m slackwater_bench page``."""

from pathlib import Path

import click

from slackwater_bench.errors import BenchError
from slackwater_bench.page.markdown import page_text
from slackwater_bench.page.plot import plot
from slackwater_bench.page.points import summaries
from slackwater_bench.registry import SCENARIOS
from slackwater_bench.results import RESULTS, ROOT, read_results

DOCS = ROOT / "docs"


def render(results: Path = RESULTS) -> dict[str, str]:
    """All files of the page by their path below ``docs``; a pure function of the results.

    Raises:
        MalformedResultError: a results file cannot be read.
    """
    files: dict[str, str] = {}
    measured = []
    for scenario in SCENARIOS.values():
        points = summaries(scenario, read_results(scenario, results))
        svg = plot(scenario, points)
        if svg is not None:
            files[f"performance/{scenario.name}.svg"] = svg
        measured.append((scenario, points, svg is not None))
    files["performance.md"] = page_text(measured)
    return files


@click.command()
@click.option("--results", type=click.Path(path_type=Path, exists=True, file_okay=False), default=RESULTS)
@click.option("--docs", type=click.Path(path_type=Path, file_okay=False), default=DOCS)
def page(results: Path, docs: Path) -> None:
    """Write docs/performance.md and its plots from the results."""
    try:
        files = render(results)
    except BenchError as error:
        raise click.ClickException(str(error)) from error
    for name, text in files.items():
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_text(text)
    for stale in set((docs / "performance").glob("*.svg")) - {docs / name for name in files}:
        stale.unlink()
    click.echo(f"{docs / 'performance.md'} and {len(files) - 1} plots")
