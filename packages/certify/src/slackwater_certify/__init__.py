"""Judges the output of any stream processor against the committed states of its source."""

from slackwater_certify.certificate import Certificate, Delays, Mode, TimeBucket, report
from slackwater_certify.certifier import certify, read_records, watch_output
from slackwater_certify.errors import CertifyError
from slackwater_certify.output import OutputRecords
from slackwater_certify.specification import Connections, Specification, load_specification

__version__ = "0.1.0"

__all__ = [
    "Certificate",
    "CertifyError",
    "Connections",
    "Delays",
    "Mode",
    "OutputRecords",
    "Specification",
    "TimeBucket",
    "certify",
    "load_specification",
    "read_records",
    "report",
    "watch_output",
]
