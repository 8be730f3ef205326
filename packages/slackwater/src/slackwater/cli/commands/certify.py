"""``slackwater certify``."""

from pathlib import Path

import click

from slackwater.cli.main import settings_command
from slackwater.command.invocation import kafka_options, setting
from slackwater.command.output import Output
from slackwater.settings.model import Settings
from slackwater_certify import Connections, load_specification
from slackwater_certify.command import DESCRIPTION, FOLLOW, MODE, OUTPUT_DSN, judge_output


@settings_command()
@click.argument("spec", type=click.Path(exists=True, path_type=Path), metavar="SPEC")
@setting("kafka.bootstrap", "The brokers.")
@setting("postgres.url", "The source database, for the final state; secret.", "--dsn")
@click.option("--output-dsn", metavar="URL", help=OUTPUT_DSN)
@click.option(
    "--mode",
    type=click.Choice(["oracle", "invariant", "both"]),
    default="oracle",
    show_default=True,
    help=MODE,
)
@click.option(
    "--follow",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help=FOLLOW,
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the certificate here."
)
@click.option(
    "--report",
    "report_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the report here.",
)
def certify(
    settings: Settings,
    spec: Path,
    output_dsn: str | None,
    mode: str,
    follow: float | None,
    json_file: Path | None,
    report_file: Path | None,
) -> int:
    """Check every output of a stream processor against the database that it is derived from.

    SPEC is a certify.toml or a folder that contains one.
    """
    specification, output = load_specification(spec), Output()
    registry = settings.registry
    connections = Connections(
        bootstrap=settings.kafka.bootstrap,
        dsn=settings.postgres.url,
        output_dsn=output_dsn,
        kafka=kafka_options(settings),
        registry=registry.url,
        registry_user=registry.user,
        registry_password=registry.password,
    )
    try:
        text, is_clean = judge_output(
            specification,
            connections,
            mode=mode,
            follow=follow,
            on_progress=output.progress,
            files={"json": json_file, "report": report_file},
        )
    finally:
        output.end_progress()
    output.line(text)
    return 0 if is_clean else 1


certify.help = f"{certify.help}\n\n{DESCRIPTION.format(command='slackwater certify')}"
