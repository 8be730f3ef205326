"""SELECT TRANSACTIONALLY: declared tables, view plans, evaluation lifted by LSN."""

from slackwater_sql.catalog import Catalog, Column, Table
from slackwater_sql.column_type import ColumnType, TypeKind
from slackwater_sql.ddl import parse_catalog
from slackwater_sql.errors import (
    EvaluationError,
    RowContradictsSchemaError,
    SchemaError,
    SqlError,
    ViewError,
)
from slackwater_sql.evaluation import OPEN_LSN, Documents, Evaluator, InputVersions, Points
from slackwater_sql.place import Place
from slackwater_sql.plan import InputPlan, KeyColumn, OutputColumn, ViewPlan
from slackwater_sql.pull import CatalogueConnection, pull_schema
from slackwater_sql.row_codec import UNAVAILABLE, RowCodec, WireRow
from slackwater_sql.view import compile_view

__all__ = [
    "OPEN_LSN",
    "UNAVAILABLE",
    "Catalog",
    "CatalogueConnection",
    "Column",
    "ColumnType",
    "Documents",
    "EvaluationError",
    "Evaluator",
    "InputPlan",
    "InputVersions",
    "KeyColumn",
    "OutputColumn",
    "Place",
    "Points",
    "RowCodec",
    "RowContradictsSchemaError",
    "SchemaError",
    "SqlError",
    "Table",
    "TypeKind",
    "ViewError",
    "ViewPlan",
    "WireRow",
    "compile_view",
    "parse_catalog",
    "pull_schema",
]
