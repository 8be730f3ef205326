"""``slackwater certify``."""

from pathlib import Path

import click

from slackwater.cli.main import settings_command
from slackwater.command.invocation import kafka_options, setting
from slackwater.command.output import Output
from slackwater.protocol import SystemClock
from slackwater.settings.model import Settings
from slackwater_certify import (
    Connections,
    Mode,
    load_specification,
    report,
    watch_output,
)
from slackwater_certify import certify as judge


@settings_command()
@click.argument("spec", type=click.Path(exists=True, path_type=Path), metavar="SPEC")
@setting("kafka.bootstrap", "The brokers.")
@setting("postgres.url", "The source database, for the final state; secret.", "--dsn")
@click.option("--output-dsn", metavar="URL", help="Database of the output table, if it is a different one.")
@click.option(
    "--mode",
    type=click.Choice(["oracle", "invariant", "both"]),
    default="oracle",
    show_default=True,
    help="Check against committed states, against invariants, or both.",
)
@click.option(
    "--follow",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="First watch the output for this long, and use arrival times as times of visibility.",
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

    SPEC is a certify.toml or a folder that contains one. Works with the output of any system, with or without
    LSNs: a Kafka topic, a PostgreSQL table, a Delta or Iceberg table. Shares no code with Slackwater's
    pipelines.

    \b
    There are two modes:
      oracle     The change topics of the source are replayed transaction by transaction, and the view's own
                 SQL is evaluated on every committed state. Each output has to match one of these states
                 (otherwise it is torn), in order, with none lost and none repeated. If the output carries
                 LSNs, it has to match the state of its LSN.
      invariant  SQL that holds in every committed state, for each document or for the whole output.
    With --dsn, the final state is also compared with the database itself.

    \b
    certify.toml, with paths relative to it:
      [output]
      kind = "topic"                          # topic | postgres | delta | iceberg
      name = "orders_with_lines"              # topic, schema.table, or location of the lake table
      commits = "orders_with_lines.commits"   # optional: topic with commit records
      format = "json"                         # or "debezium": change events with the document in "after";
                                              #   schemas are read from the configured schema registry
      lsn_header = "slackwater-commit-lsn"    # optional: record header with the commit LSN
      ledger = "/lake/slackwater/shop_lake"   # optional, for a lake table: location of the pipeline's ledger,
      table = "shop_views.order_details"      #   and the table's name in it; for a table in PostgreSQL:
                                              #   ledger = "shop_tables", the name of the pipeline
      [source]
      name = "inv"                            # the connector's topic.prefix
      schema = "schema.sql"                   # CREATE TABLE statements
      [view]
      sql = "views/orders_with_lines.sql"
      key = ["id"]                            # columns of the output that identify a document
      unordered = []                          # list columns whose order does not count
      [view.rows]                             # by table: columns that identify the document of a row; without
      "inventory.orders" = ["id"]             #   this section, the whole view is evaluated for each commit
      "inventory.order_lines" = ["order_id"]
      [[invariant]]
      name = "line_count is the number of lines"
      scope = "document"                      # or "state": a SELECT of one boolean FROM output
      holds = "line_count = len(lines)"
      error = "abs(line_count - len(lines))"  # optional: the size of the error

    \b
    Examples:
      slackwater certify pipelines/orders --bootstrap localhost:9092 --dsn postgresql://app@localhost/shop
      slackwater certify peers/flink.toml --bootstrap localhost:9092 --mode both --follow 60 --json flink.json

    Stop writing to the source and let the output catch up first: changes that have not arrived in the output
    count as lost. The exit code is 0 if the output is clean, 1 if it is not, and 2 for wrong usage.
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
        records = None
        if follow:
            output.progress(f"watching the output for {follow:,.0f} s")
            clock = SystemClock()
            end = clock.monotonic() + follow
            records = watch_output(specification, connections, lambda: clock.monotonic() >= end)
        certificate = judge(
            specification, connections, mode=Mode(mode), records=records, on_progress=output.progress
        )
    finally:
        output.end_progress()
    text = report(certificate)
    output.line(text.rstrip())
    _write(report_file, text)
    _write(json_file, certificate.to_json() + "\n")
    return 0 if certificate.is_clean else 1


def _write(file: Path | None, text: str) -> None:
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
