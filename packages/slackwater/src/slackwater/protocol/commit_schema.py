"""The schemas of commit records, for readers in any language."""

from enum import StrEnum
from importlib.resources import files


class SchemaLanguage(StrEnum):
    """The languages in which a schema is shipped."""

    JSON = "json"
    """JSON Schema, draft 2020-12, of the values in commit topics."""
    AVRO = "avro"
    """Avro, record ``commit``, for readers that pass commit records on."""


_FILES = {SchemaLanguage.JSON: "commit.schema.json", SchemaLanguage.AVRO: "commit.avsc"}


def commit_schema(language: SchemaLanguage) -> str:
    """Returns the schema of a commit record, as JSON text."""
    return files("slackwater.protocol").joinpath("schemas", _FILES[language]).read_text("utf-8")
