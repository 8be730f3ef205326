"""A table without key: its repeated rows may stand in any partition. Read as Spark's tasks would."""

from collections import Counter

import msgspec
import psycopg
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructType, TimestampType

from slackwater_spark.source.options import SourceOptions
from slackwater_spark.source.readers import SlackwaterBatchReader
from slackwater_spark.source.rows import ROW_SCHEMA

JOURNAL = "inventory.journal"
CREATE = "CREATE TABLE inventory.journal (entry text NOT NULL)"
_TYPES: dict[str, type[DataType]] = {
    "STRING": StringType,
    "BIGINT": LongType,
    "INT": IntegerType,
    "TIMESTAMP": TimestampType,
}


def committed_entries(dsn: str) -> Counter[str]:
    """The rows of the table, by text."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT entry, count(*) FROM inventory.journal GROUP BY entry").fetchall()
    return Counter({str(entry): int(count) for entry, count in found})


def read_entries(bootstrap: str, source: str) -> Counter[str]:
    """Reads the entries that a batch query over everything up to the newest cut finds.

    Raises:
        BadInputError: among others, when equal rows cannot be told apart.
    """
    options = SourceOptions.parse(
        {
            "source": source,
            "bootstrap": bootstrap,
            "tables": JOURNAL,
            "parallelism": "4",
            "min_task_events": "1",
            "kafka.log_level": "0",  # the consumer is kept, and would tell that the broker has gone
        }
    )
    reader = SlackwaterBatchReader(options, _schema())
    found: Counter[str] = Counter()
    for task in reader.partitions():
        for batch in reader.read(task):
            found.update(msgspec.json.decode(row)["entry"] for row in batch.column("after").to_pylist())
    return found


def _schema() -> StructType:
    schema = StructType()
    for column in ROW_SCHEMA.split(", "):
        name, kind = column.split()
        schema.add(name.strip("`"), _TYPES[kind]())
    return schema
