"""The specification by which changes become events of stages. It is passed as an option of the source."""

from dataclasses import dataclass, replace

import msgspec

from slackwater.engine.settings import FormProof
from slackwater.sql.catalog import Table
from slackwater.sql.plan import EnginePlan, InputPlan, StagePlan, fingerprint
from slackwater.sql.row_codec import in_unknown_forms

SPEC_VERSION = 2
FULL_HINT = "ALTER TABLE {table} REPLICA IDENTITY FULL"
"""The statement that makes old rows complete; a part of hints."""
MIN_BUCKETS = 1


@dataclass(frozen=True, slots=True)
class PackingInput:
    """One input of a stage. A table that occurs twice in FROM is two inputs.

    Attributes:
        stage: The number of the stage that receives the rows.
        number: The number of the input in events.
        table: The declared table, with the needed columns only.
        key: The columns of the stage key.
        moves: Whether an update may change the stage key, so that old rows must be complete.
        keeps_null_keys: Whether rows with a NULL in the key belong to the view. If not, they are not packed;
            if so, they form the group of that key.
    """

    stage: int
    number: int
    alias: str
    table: Table
    key: tuple[str, ...]
    moves: bool
    keeps_null_keys: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the packed columns, in order."""
        return tuple(column.name for column in self.table.columns)

    def positions(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Returns the positions of these columns in a packed row."""
        return tuple(self.columns.index(name) for name in names)


@dataclass(frozen=True, slots=True)
class PackingSpec:
    """What a source needs to pack changes for the stages of a pipeline.

    Attributes:
        inputs: The inputs of all stages that keep rows of tables.
        key: The names of the key's columns in documents; only if there is one stage.
        buckets: The number of buckets of each stage; fixed for the life of a pipeline.
        touched: The stages without key columns; each batch informs them that their only group exists.
        takes_only_own: Whether records that neither a pipeline nor a service wrote are refused.
    """

    inputs: tuple[PackingInput, ...]
    key: tuple[str, ...]
    buckets: int
    fingerprint: str
    touched: tuple[int, ...] = ()
    takes_only_own: bool = False
    version: int = SPEC_VERSION

    @property
    def tables(self) -> frozenset[str]:
        """The full names of the tables whose changes are packed."""
        return frozenset(i.table.full_name for i in self.inputs)

    def key_json(self, key: bytes) -> bytes:
        """Returns a packed stage key in the form that documents contain."""
        return msgspec.json.encode(dict(zip(self.key, msgspec.msgpack.decode(key), strict=True)))

    def to_json(self) -> str:
        """Returns the text form, which the option ``packing`` of the source accepts."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> "PackingSpec":
        """Inverse of :meth:`to_json`.

        Raises:
            ValueError: The text is not a packing specification of this version.
        """
        try:
            spec = msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            msg = f"not a packing specification: {error}"
            raise ValueError(msg) from error
        if spec.version != SPEC_VERSION:
            msg = f"packing specification has version {spec.version}, expected {SPEC_VERSION}"
            raise ValueError(msg)
        return spec


def packing_spec(
    plan: EnginePlan, buckets: int, *, proof: FormProof = FormProof.CONFIGURATION
) -> PackingSpec:
    """Returns the specification for a pipeline.

    Raises:
        ValueError: `buckets` is not positive.
    """
    if buckets < MIN_BUCKETS:
        msg = f"buckets is {buckets}, expected a positive number"
        raise ValueError(msg)
    stages = plan.stages
    return PackingSpec(
        inputs=tuple(
            replace(i, table=in_unknown_forms(i.table)) if proof is FormProof.VALUES else i
            for each in stages
            for i in stage_inputs(each)
            if not each.kept_by and each.rows is not None and not each.rows.origins[i.number]
        ),
        key=tuple(column.name for column in stages[0].key) if len(stages) == 1 else (),
        buckets=buckets,
        fingerprint=fingerprint(plan.stages),
        touched=tuple(each.number for each in stages if not each.key),
        takes_only_own=proof is FormProof.WRITER,
    )


def stage_inputs(stage: StagePlan) -> tuple[PackingInput, ...]:
    """Returns all inputs of a stage, both tables and rows of earlier stages."""
    if stage.rows is None:
        return ()
    return tuple(_packing_input(stage.number, number, each) for number, each in enumerate(stage.rows.inputs))


def _packing_input(stage: int, number: int, plan: InputPlan) -> PackingInput:
    return PackingInput(
        stage=stage,
        number=number,
        alias=plan.alias,
        table=replace(plan.table, columns=plan.columns),
        key=plan.key,
        moves=plan.needs_replica_identity_full,
        keeps_null_keys=plan.keeps_null_keys,
    )
