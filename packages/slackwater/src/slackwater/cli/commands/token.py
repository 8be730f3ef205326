"""``slackwater token``."""

import click

from slackwater.command.listening import Role, new_token


@click.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--role", type=click.Choice([str(role) for role in Role]), default=str(Role.VIEWER), show_default=True
)
def token(name: str, role: str) -> None:
    """Create an access token for the control plane, for the person or program NAME.

    Prints the entry for the file that control.tokens refers to and, on standard error, the token itself. The
    file contains only a hash of the token, so the token is shown only once. A viewer can read, and an
    operator can also make decisions. The control plane applies changes of the file immediately: a token that
    was removed is no longer accepted.

    \b
    Examples:
      slackwater token grafana >> /etc/slackwater/tokens.toml
      slackwater token ada --role operator >> /etc/slackwater/tokens.toml
      curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8086/api/v1/topology

    For details see docs/control-plane.md.
    """
    made, entry = new_token(name, Role(role))
    click.echo(entry)
    click.echo(f"the token of {name}, which is not shown again: {made}", err=True)
