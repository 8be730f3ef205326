"""Made-up sources and outputs: for tests of the certifier and of its users."""

from slackwater_certify.testing.source import (
    SCHEMA,
    SPECIFICATION,
    VIEW,
    Document,
    Record,
    RightOutput,
    Row,
    SourceLog,
    line,
    order,
    write_specification,
)

__all__ = [
    "SCHEMA",
    "SPECIFICATION",
    "VIEW",
    "Document",
    "Record",
    "RightOutput",
    "Row",
    "SourceLog",
    "line",
    "order",
    "write_specification",
]
