"""``slackwater config``."""

import click

from slackwater_command.invocation import Invocation
from slackwater_command.loading import setting_fields
from slackwater_command.output import Output


@click.command()
@click.pass_obj
def config(invocation: Invocation) -> None:
    """Show every setting, its value and where the value comes from.

    Secrets are masked. Flags of a command are not known here; everything else is what a command started
    from this folder would use.

    \b
    Three ways to say the same, the first one wins:
      --redis-url redis://localhost:6379        flag of a command
      SLACKWATER_REDIS_URL=redis://localhost    environment; SLACKWATER_REDIS__URL works, too
      [redis]                                   slackwater.toml, or the file of --config
      url = "redis://localhost"                 or SLACKWATER_CONFIG

    Names in the environment: SLACKWATER_, the section, one or two underscores, the key, all in capitals.
    For bootstrap, checkpoint, master and available_now the section may be left out. A relative path in the
    file is relative to the file.
    """
    descriptions = {field.path: field.info.description or "" for field in setting_fields()}
    rows = [("setting", "value", "from", "meaning")]
    rows += [(path, value, origin, descriptions[path]) for path, value, origin in invocation.load().shown()]
    Output().table(rows)
