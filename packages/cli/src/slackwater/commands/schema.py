"""``slackwater schema``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import psycopg

from slackwater.errors import unreachable
from slackwater.invocation import required, setting, start_command
from slackwater.output import Output
from slackwater_sql.postgres import published_apart, pull_schema

_CONNECT_SECONDS = 10
_POSTGRES_URL = setting(
    "postgres.url", "--postgres-url", metavar="URL", help="postgresql://user@host:port/database; secret."
)


@click.group()
def schema() -> None:
    """Write the tables that a pipeline reads, or compare them with the database.

    A pipeline folder declares its tables in schema.sql, as CREATE TABLE statements. Types are declared, not
    guessed: a record that contradicts them is bad input.

    \b
    Examples:
      slackwater schema pull --postgres-url URL --table inventory.orders --output pipelines/orders/schema.sql
      slackwater schema check pipelines/orders --postgres-url URL
    """


@schema.command()
@_POSTGRES_URL
@click.option(
    "--table", "tables", multiple=True, required=True, metavar="SCHEMA.TABLE", help="Table; repeat."
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write here.  [default: standard output]",
)
@click.pass_context
def pull(ctx: click.Context, tables: tuple[str, ...], output: Path | None) -> None:
    """Write CREATE TABLE statements from a database's catalogue.

    Reads the catalogue only. The result is what a pipeline needs: columns with their types, primary keys and
    replica identities.

    \b
    Example:
      slackwater schema pull --postgres-url postgresql://app@localhost/inventory \\
          --table inventory.orders --table inventory.order_lines --output pipelines/orders/schema.sql

    Better than in a flag, a URL with a password stands in SLACKWATER_POSTGRES_URL or in slackwater.toml
    (url under [postgres]).
    """
    with _database(ctx) as connection:
        text = pull_schema(connection, tables)
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        click.echo(f"{output}: {len(tables)} tables")


@schema.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@_POSTGRES_URL
@click.pass_context
def check(ctx: click.Context, folder: Path) -> None:
    """Compare the tables that the pipeline in DIR declares with those of the database.

    Reads the catalogue only. Says what differs and which views use it: columns that no view uses may come, go
    and change. A running pipeline notices by itself what contradicts its declarations, but not what has the
    same form in JSON, like timestamp(3) and timestamp(6): so check before and after every migration.

    Exit code 0 if no view is affected, 1 otherwise.

    \b
    Example:
      slackwater schema check pipelines/orders --postgres-url postgresql://app@localhost/inventory
    """
    # Spark's libraries take a second to import; the help text does not need them
    from slackwater.schema_check import affected, difference_lines, differences, pulled_catalog
    from slackwater_spark.pipeline import load_pipeline, read_sql

    output = Output()
    definition = load_pipeline(folder)
    with _database(ctx) as connection:
        database = pulled_catalog(connection, definition.tables)
        apart = published_apart(connection, definition.tables)
    found = differences(definition.plan, read_sql(folder).catalog, database, apart)
    for line in difference_lines(definition.name, definition.revision, found):
        output.line(line)
    ctx.exit(1 if affected(found) else 0)


@contextmanager
def _database(ctx: click.Context) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """Connects with the source database.

    Raises:
        CommandUnavailableError: it cannot be reached, or refuses what is asked within the block.
    """
    secret = start_command(ctx).postgres.url
    url = secret.get_secret_value() if secret else None
    url = required(url, "postgres.url", "--postgres-url", "whose tables to read")
    try:
        with psycopg.connect(url, connect_timeout=_CONNECT_SECONDS) as connection:
            yield connection
    except psycopg.Error as error:
        raise unreachable("PostgreSQL", "reading the catalogue", str(error).strip()) from error
