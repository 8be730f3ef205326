"""``slackwater schema``."""

from pathlib import Path

import click

from slackwater.invocation import Invocation, given_flags, required, setting


@click.group()
def schema() -> None:
    """The tables a pipeline's views read.

    A pipeline folder declares its tables in schema.sql, as CREATE TABLE statements. Types are declared, not
    guessed: a record that contradicts them is bad input.
    """


@schema.command()
@setting(
    "postgres.url", "--postgres-url", metavar="URL", help="postgresql://user@host:port/database; secret."
)
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
    import psycopg

    from slackwater_sql.pull import pull_schema

    invocation: Invocation = ctx.obj
    settings = invocation.start(given_flags(ctx))
    secret = settings.postgres.url
    url = required(
        secret.get_secret_value() if secret else None,
        "postgres.url",
        "--postgres-url",
        "whose tables to read",
    )
    with psycopg.connect(url) as connection:
        text = pull_schema(connection, tables)
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        click.echo(f"{output}: {len(tables)} tables")
