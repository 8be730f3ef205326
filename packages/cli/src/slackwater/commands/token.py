"""``slackwater token``."""

import click

from slackwater.control.access import Role, new_token


@click.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--role", type=click.Choice([str(role) for role in Role]), default=str(Role.VIEWER), show_default=True
)
def token(name: str, role: str) -> None:
    """Make a token for the control plane, for whoever or whatever NAME is.

    Prints the entry for the file that control.tokens names, and, to standard error, the token itself. Only
    its hash is in the file, so the token is shown once and never again. A viewer reads, an operator decides,
    too. The control plane obeys changes of the file at once: who is removed is not admitted any more.

    \b
    Examples:
      slackwater token grafana >> /etc/slackwater/tokens.toml
      slackwater token ada --role operator >> /etc/slackwater/tokens.toml
      curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8086/api/v1/topology

    Read on in docs/control-plane.md.
    """
    made, entry = new_token(name, Role(role))
    click.echo(entry)
    click.echo(f"the token of {name}, which is shown only now: {made}", err=True)
