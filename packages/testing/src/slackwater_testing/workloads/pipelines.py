"""The pipeline folders of the workloads, and the tables that their schema files declare."""

from collections.abc import Mapping
from pathlib import Path

from slackwater_sql.catalog import Table
from slackwater_sql.postgres import parse_catalog
from slackwater_testing.workloads.workload import Workload

_MEMBER = Path(__file__).parents[3]
REPOSITORY = _MEMBER.parents[1]


def workload_pipeline(name: str) -> Path:
    """The folder of a pipeline that exists for a workload only."""
    return _MEMBER / "pipelines" / name


def repository_pipeline(name: str) -> Path:
    """The folder of one of the repository's pipelines, which are there to be read and tried."""
    return REPOSITORY / "pipelines" / name


def schema_text(workload: Workload) -> str:
    """The ``CREATE TABLE`` statements."""
    return (workload.pipeline / "schema.sql").read_text(encoding="utf-8")


def tables_of(workload: Workload) -> Mapping[str, Table]:
    """Full name to table, in the order of the file."""
    path = str(workload.pipeline / "schema.sql")
    return {table.full_name: table for table in parse_catalog({path: schema_text(workload)}).tables}
