"""The tables of a workload, from its pipeline's schema file."""

from collections.abc import Mapping

from slackwater_bench.workloads.workload import Workload
from slackwater_sql.catalog import Table
from slackwater_sql.ddl import parse_catalog


def schema_text(workload: Workload) -> str:
    """The ``CREATE TABLE`` statements."""
    return (workload.pipeline / "schema.sql").read_text(encoding="utf-8")


def tables_of(workload: Workload) -> Mapping[str, Table]:
    """Full name to table, in the order of the file."""
    path = str(workload.pipeline / "schema.sql")
    return {table.full_name: table for table in parse_catalog({path: schema_text(workload)}).tables}
