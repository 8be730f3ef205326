"""``slackwater config``."""

import click

from slackwater.command.invocation import Invocation
from slackwater.command.output import Output
from slackwater.settings.loading import setting_fields


@click.command()
@click.pass_obj
def config(invocation: Invocation) -> None:
    """Show every setting, its value and where the value comes from.

    Secrets are masked. Flags of other commands are not taken into account. All other values are those that a
    command started in this folder would use.

    \b
    There are three ways to set a value. The first one that is present takes precedence:
      --redis-url redis://localhost:6379        flag of a command
      SLACKWATER_REDIS_URL=redis://localhost    environment; also SLACKWATER_REDIS__URL
      [redis]                                   slackwater.toml, or the file given by --config
      url = "redis://localhost"                 or SLACKWATER_CONFIG

    The name of an environment variable is SLACKWATER_, the section, one or two underscores, and the key, all
    in capitals. You may omit the section for bootstrap, checkpoint, master and available_now. Relative paths
    in the file are relative to the location of the file.
    """
    descriptions = {field.path: field.declared.meaning for field in setting_fields()}
    rows = [("setting", "value", "from", "meaning")]
    rows += [(path, value, origin, descriptions[path]) for path, value, origin in invocation.load().shown()]
    Output().table(rows)
