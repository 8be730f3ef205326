"""The service that works out the frontier and publishes cuts and markers."""

from slackwater_sidecar.errors import (
    HttpAddressError,
    SidecarError,
    SourceTruncatedError,
    SourceUnavailableError,
    TimelineError,
)
from slackwater_sidecar.publisher import Publisher, markers_of
from slackwater_sidecar.reader import SourceReader
from slackwater_sidecar.service import Sidecar, run_sidecar
from slackwater_sidecar.settings import SidecarSettings
from slackwater_sidecar.status import SidecarStatus, describe_open, format_status

__all__ = [
    "HttpAddressError",
    "Publisher",
    "Sidecar",
    "SidecarError",
    "SidecarSettings",
    "SidecarStatus",
    "SourceReader",
    "SourceTruncatedError",
    "SourceUnavailableError",
    "TimelineError",
    "describe_open",
    "format_status",
    "markers_of",
    "run_sidecar",
]
