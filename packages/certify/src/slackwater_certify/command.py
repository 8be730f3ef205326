"""The command ``slackwater-certify``, and what ``slackwater certify`` has in common with it."""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slackwater_certify.certificate import Mode, report
from slackwater_certify.certifier import certify, watch_output
from slackwater_certify.errors import CertifyConfigError, CertifyError
from slackwater_certify.specification import Connections, Specification, load_specification

FOLLOW = "First watch the output for this long, and use arrival times as times of visibility."
MODE = "Check against committed states, against invariants, or both."
OUTPUT_DSN = "Database of the output table, if it is a different one."
SUMMARY = "Check every output of a stream processor against the database that it is derived from."
DESCRIPTION = """\
Works with the output of any system, with or without LSNs: a Kafka topic, a PostgreSQL table, a Delta or
Iceberg table. Shares no code with Slackwater's pipelines.

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
  only.slackwater-view = "orders"         # optional, in a topic of several outputs: a header of this one
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
  {command} pipelines/orders --bootstrap localhost:9092 --dsn postgresql://app@localhost/shop
  {command} peers/flink.toml --bootstrap localhost:9092 --mode both --follow 60 --json flink.json

Stop writing to the source and let the output catch up first: changes that have not arrived in the output
count as lost. The exit code is 0 if the output is clean, 1 if it is not, and 2 for wrong usage.
"""
_KAFKA = """\
File with more settings of librdkafka, one a line: security.protocol=SASL_SSL. A schema registry is
schema.registry.url, and basic.auth.user.info=USER:PASSWORD."""
_REGISTRY, _REGISTRY_USER = "schema.registry.url", "basic.auth.user.info"
_LAKE = ("deltalake", "pyiceberg")


def judge_output(
    specification: Specification,
    connections: Connections,
    *,
    mode: str,
    follow: float | None,
    on_progress: Callable[[str], None],
    files: Mapping[str, Path | None],
) -> tuple[str, bool]:
    """Judges an output; returns the report, and whether the output is clean.

    Writes the files with the certificate in JSON (``json``) and the report (``report``) that are wanted.
    """
    records = None
    if follow:
        on_progress(f"watching the output for {follow:,.0f} s")
        end = time.monotonic() + follow
        records = watch_output(specification, connections, lambda: time.monotonic() >= end)
    found = certify(specification, connections, mode=Mode(mode), records=records, on_progress=on_progress)
    for name, text in (("report", report(found)), ("json", found.to_json() + "\n")):
        if (file := files.get(name)) is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    return report(found).rstrip(), found.is_clean


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``slackwater-certify``; returns its exit code."""
    given = _parser().parse_args(arguments)
    try:
        text, is_clean = judge_output(
            load_specification(given.spec),
            _connections(given),
            mode=given.mode,
            follow=given.follow,
            on_progress=_say,
            files={"json": given.json, "report": given.report},
        )
    except CertifyError as error:
        sys.stderr.write(f"Error: {error}\n")
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name not in _LAKE:
            raise
        sys.stderr.write(f"Error: {error.name} is not installed; install slackwater-certify[lake]\n")
        return 2
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(f"{text}\n")
    return 0 if is_clean else 1


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    text = DESCRIPTION.replace("\b\n", "").format(command="slackwater-certify")
    parser = argparse.ArgumentParser(
        "slackwater-certify",
        description=SUMMARY,
        epilog=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("spec", type=Path, metavar="SPEC", help="a certify.toml, or a folder that contains one")
    add("--bootstrap", metavar="HOST:PORT", help="The brokers.")
    add("--dsn", metavar="URL", help="The source database, for the final state.")
    add("--output-dsn", metavar="URL", help=OUTPUT_DSN)
    add("--kafka-config", type=Path, metavar="FILE", help=_KAFKA)
    add("--mode", choices=list(map(str, Mode)), default="oracle", help=MODE)
    add("--follow", type=float, metavar="SECONDS", help=FOLLOW)
    add("--json", type=Path, metavar="FILE", help="Write the certificate here.")
    add("--report", type=Path, metavar="FILE", help="Also write the report here.")
    return parser


def _connections(given: argparse.Namespace) -> Connections:
    kafka = {} if given.kafka_config is None else _properties(given.kafka_config)
    registry, user = kafka.pop(_REGISTRY, None), kafka.pop(_REGISTRY_USER, None)
    name, _, password = (user or "").partition(":")
    return Connections(
        bootstrap=given.bootstrap,
        dsn=given.dsn,
        output_dsn=given.output_dsn,
        kafka=kafka,
        registry=registry,
        registry_user=name or None,
        registry_password=password or None,
    )


def _properties(file: Path) -> dict[str, str]:
    """Reads lines ``name=value``; empty ones and those that begin with ``#`` mean nothing.

    Raises:
        CertifyConfigError: The file cannot be read, or has another line.
    """
    try:
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise CertifyConfigError(f"--kafka-config {file} cannot be read: {error}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        if line and not line.startswith("#"):
            if not equals:
                raise CertifyConfigError(
                    f"{file}, line {number}: expected a setting such as security.protocol=SSL"
                )
            found[name.strip()] = value.strip()
    return found
