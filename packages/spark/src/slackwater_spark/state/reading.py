"""Reading a checkpoint's state as tables, with Spark's data sources ``state-metadata`` and ``statestore``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

META: Final = "meta"
LOG: Final = "log"


@dataclass(frozen=True, slots=True, order=True)
class StateVariable:
    """A variable of one stateful operator of the query."""

    operator: int
    name: str

    def __str__(self) -> str:
        return f"variable {self.name} of operator {self.operator}"


@dataclass(frozen=True, slots=True)
class StateDigest:
    """What is compared of a variable's contents."""

    entries: int
    bytes: int
    checksum: int

    def __str__(self) -> str:
        return f"{self.entries:,} entries of {self.bytes:,} bytes with checksum {self.checksum:x}"


def operators(session: "SparkSession", folder: Path) -> list[int]:
    """Numbers of the query's stateful operators, ascending: one for each stage of the chain."""
    rows = session.read.format("state-metadata").load(str(folder)).select("operatorId").distinct().collect()
    return sorted(row.operatorId for row in rows)


def state_table(session: "SparkSession", folder: Path, batch: int, variable: StateVariable) -> "DataFrame":
    """The contents of a variable after a batch, partition by partition.

    Columns: `partition_id`, `key` (the bucket's struct); for the log `user_map_key.number` and
    `user_map_value.changes`, for the meta data `value`.
    """
    options = {
        "batchId": str(batch),
        "operatorId": str(variable.operator),
        "stateVarName": variable.name,
    }
    return session.read.format("statestore").options(**options).load(str(folder))


def state_digests(session: "SparkSession", folder: Path, batch: int) -> "Mapping[StateVariable, StateDigest]":
    """The contents of all variables after a batch in a few numbers, whatever partition they are in."""
    variables = [StateVariable(each, name) for each in operators(session, folder) for name in (META, LOG)]
    return {each: _digest(state_table(session, folder, batch, each)) for each in variables}


def _digest(table: "DataFrame") -> StateDigest:
    from pyspark.sql import functions as f

    columns = [name for name in table.columns if name != "partition_id"]
    is_log = "user_map_value" in columns
    size = f.length("user_map_value.changes") if is_log else f.lit(0)
    parts = [f.col(name).cast("string") if name == "key" else f.col(name) for name in columns]
    facts = table.select(f.xxhash64(*parts).alias("hash"), size.alias("size"))
    (row,) = facts.agg(f.count("*"), f.coalesce(f.sum("size"), f.lit(0)), f.bit_xor("hash")).collect()
    return StateDigest(row[0], row[1], (row[2] or 0) & 0xFFFF_FFFF_FFFF_FFFF)
