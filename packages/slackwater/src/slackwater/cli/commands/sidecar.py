"""``slackwater sidecar``."""

from slackwater.cli.control.server import control_plane
from slackwater_sidecar.command import sidecar_command

sidecar = sidecar_command("slackwater sidecar", control_plane)
