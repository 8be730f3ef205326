"""``slackwater explain``."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from slackwater.invocation import start_command
from slackwater.output import Output


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--sql", "with_sql", is_flag=True, help="Show the statements that stages evaluate, too.")
@click.option("--json", "as_json", is_flag=True, help="For tools: one JSON object, statements included.")
@click.pass_context
def explain(ctx: click.Context, folder: Path, with_sql: bool, as_json: bool) -> None:
    """Show by which stages the pipeline in DIR computes its views, and why.

    For each stage: what it is keyed by, which columns of which tables it reads, what it keeps, what it
    computes when something changes, and where its results go. For each view: topic, record key, columns.
    Needs no server. A view that is not supported is refused with its place.

    \b
    Examples:
      slackwater explain pipelines/orders
      slackwater explain pipelines/orders --sql

    docs/views.md says what a view may contain, docs/state.md what the stages keep.
    """
    from slackwater_spark.explain import explain as explained
    from slackwater_spark.explain import explanation_lines
    from slackwater_spark.pipeline import load_pipeline

    start_command(ctx)
    explanation = explained(load_pipeline(folder), with_sql=with_sql or as_json)
    output = Output()
    if as_json:
        click.echo(json.dumps(asdict(explanation), indent=2))
        return
    for line in explanation_lines(explanation):
        output.line(line)
