"""The service that works out the frontier and publishes cuts and markers."""

from slackwater_sidecar.errors import (
    HttpAddressError,
    ScatteredTopicError,
    SidecarError,
    SourcesFailedError,
    SourceTruncatedError,
    SourceUnavailableError,
)
from slackwater_sidecar.monitor import SourceMonitor
from slackwater_sidecar.publisher import Publisher
from slackwater_sidecar.reader import SourceReader
from slackwater_sidecar.run import run_sidecar, run_sidecars
from slackwater_sidecar.service import Sidecar
from slackwater_sidecar.settings import SidecarSettings
from slackwater_sidecar.status import SidecarStatus, describe_open, format_status

__all__ = [
    "HttpAddressError",
    "Publisher",
    "ScatteredTopicError",
    "Sidecar",
    "SidecarError",
    "SidecarSettings",
    "SidecarStatus",
    "SourceMonitor",
    "SourceReader",
    "SourceTruncatedError",
    "SourceUnavailableError",
    "SourcesFailedError",
    "describe_open",
    "format_status",
    "run_sidecar",
    "run_sidecars",
]
