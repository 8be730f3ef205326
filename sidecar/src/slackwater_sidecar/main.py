"""``slackwater-sidecar``: the sidecar's command where nothing else of Slackwater is installed."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version

import click

from slackwater.command.boundary import run_command, watch_process
from slackwater.command.options import general_options
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.model import Settings
from slackwater_sidecar.command import ControlPlane, sidecar_command


@contextmanager
def _no_control_plane(settings: Settings) -> Iterator[ControlPlane | None]:
    if settings.control.listen is not None:
        raise CommandConfigError(
            "slackwater-sidecar does not serve the control plane",
            "run `slackwater sidecar`, or remove control.listen",
        )
    yield None


_command = general_options(sidecar_command("slackwater-sidecar", _no_control_plane))
_command = click.version_option(version("slackwater-sidecar"), message="slackwater-sidecar %(version)s")(
    _command
)

_EXTRAS = {"opentelemetry": "slackwater-sidecar[telemetry]"}
"""What is installed only with an extra, and that extra."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and ends the process."""
    watch_process()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(_command, "slackwater-sidecar", arguments, _EXTRAS)
