"""Servers that only tests start, beside the development stack's own, and fixtures for all of them."""

from slackwater_lab.servers.database_log import DatabaseLog, LoggedChange, LoggedTransaction
from slackwater_lab.servers.storage import DataNode, NameNode, ObjectStore

__all__ = [
    "DataNode",
    "DatabaseLog",
    "LoggedChange",
    "LoggedTransaction",
    "NameNode",
    "ObjectStore",
]
