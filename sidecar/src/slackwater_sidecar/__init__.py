"""The sidecar: works out the frontier of a source and publishes cuts and markers."""

from slackwater_sidecar.consumption import SidecarUnavailableError
from slackwater_sidecar.monitor import SourceMonitor
from slackwater_sidecar.publisher import Publisher
from slackwater_sidecar.reader import SourceReader
from slackwater_sidecar.run import run_sidecar, run_sidecars
from slackwater_sidecar.service import Sidecar
from slackwater_sidecar.settings import SidecarSettings
from slackwater_sidecar.status import SidecarStatus, describe_open, format_status

__version__ = "0.1.0"

__all__ = [
    "Publisher",
    "Sidecar",
    "SidecarSettings",
    "SidecarStatus",
    "SidecarUnavailableError",
    "SourceMonitor",
    "SourceReader",
    "describe_open",
    "format_status",
    "run_sidecar",
    "run_sidecars",
]
