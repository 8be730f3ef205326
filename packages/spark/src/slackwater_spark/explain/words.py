"""Parts of a plan as phrases."""

from collections.abc import Iterator, Mapping, Sequence

from slackwater_sql.plan import (
    AccumulatePart,
    Accumulator,
    AccumulatorKind,
    DocumentsOutput,
    Edge,
    EnginePlan,
    KeyColumn,
    PartialsOutput,
    Reads,
    StagePlan,
)

_READS = {
    Reads.GROUP: "if only {input} changed, all rows of the key are evaluated",
    Reads.CHANGED: "if only {input} changed, its changed rows with the others' rows of the key are evaluated",
    Reads.CHANGED_AND_WITNESS: (
        "if only {input} changed, its changed rows and one other of them with the others' rows of the key "
        "are evaluated"
    ),
    Reads.ALONE: "each changed row of {input} by itself",
}
_ACCUMULATORS = {
    AccumulatorKind.COUNT: "a number for {text}",
    AccumulatorKind.SUM: "an exact sum and a number for {text}",
    AccumulatorKind.MIN: "the ordered values of {text}",
    AccumulatorKind.MAX: "the ordered values of {text}",
    AccumulatorKind.DISTINCT: "the different values of {text}",
}


def listed(words: Sequence[str]) -> str:
    """Words as a list in a sentence."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def key_columns(key: Sequence[KeyColumn], labels: Mapping[str, str]) -> tuple[str, ...]:
    """Name and type of each; made-up names as the user calls what they stand for."""
    return tuple(f"{labels.get(column.name, column.name)} {column.type}" for column in key)


def accumulated(part: AccumulatePart, labels: Mapping[str, str]) -> str:
    """What is kept of groups."""
    kept = ["the number of rows", *(_accumulator(each) for each in part.accumulators)]
    of = "for the one group" if part.is_global else f"per group ({', '.join(key_columns(part.key, labels))})"
    return f"{of}, not its rows: {listed(kept)}"


def computed(stage: StagePlan) -> Iterator[str]:
    """What is evaluated when something changes."""
    rows = stage.rows
    if rows is not None:
        if set(rows.reads) == {Reads.ALONE}:
            yield "each changed row by itself"
        else:
            for each in rows.inputs:
                yield _READS[each.reads].format(input=each.alias)
            if len(rows.inputs) > 1 and not set(rows.reads) <= {Reads.GROUP, Reads.ALONE}:
                yield "if several changed, all rows of the key are evaluated"
    if stage.accumulate is not None:
        yield "what changed is added to the groups; only changed groups are evaluated"


def sent(stage: StagePlan, plan: EnginePlan) -> str:
    """Where results go."""
    match stage.output:
        case DocumentsOutput(view=view):
            return f"changed documents to view {plan.views[view].name}"
        case PartialsOutput(stage=target):
            return f"what changes add to groups to stage {target}"
        case other:
            return f"changed rows to {listed([_receiver(edge, plan) for edge in other.edges])}"


def _receiver(edge: Edge, plan: EnginePlan) -> str:
    rows = plan.stage(edge.stage).rows
    alias = "" if rows is None else f" as {rows.inputs[edge.input].alias}"
    return f"stage {edge.stage}{alias}"


def _accumulator(each: Accumulator) -> str:
    return _ACCUMULATORS[each.kind].format(text=each.text)
