"""Random histories: a right output is clean, and one planted fault is found wherever it is."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from slackwater_certify import Certificate, Mode
from slackwater_certify.output import Output
from slackwater_lab.fakes.certified import RightOutput, Row, SourceLog, line, order

Judge = Callable[..., Certificate]
Change = tuple[str, int, Row | None]

SEEDS = range(12)


def random_log(rng: random.Random) -> SourceLog:
    """Orders that are made, changed and deleted; lines that come, go and move. Totals always agree."""
    log, lines = SourceLog(), dict[int, tuple[int, int]]()
    orders: set[int] = set()
    log.snapshot([("orders", order(9, "0.00"))])
    orders.add(9)
    for _ in range(rng.randint(15, 40)):
        log.commit(*random_changes(rng, orders, lines))
    return log


def random_changes(rng: random.Random, orders: set[int], lines: dict[int, tuple[int, int]]) -> list[Change]:
    changes: list[Change] = []
    touched: set[int] = set()
    for _ in range(rng.randint(1, 4)):
        order_id, line_id = rng.randint(1, 9), rng.randint(1, 25)
        before = lines.pop(line_id, None)
        if before is not None:
            touched.add(before[0])
        if before is not None and rng.random() < 0.4:
            changes.append(("lines", line_id, None))
        else:
            cents = rng.randint(1, 500)
            lines[line_id] = order_id, cents
            touched.add(order_id)
            changes.append(("lines", line_id, line(line_id, order_id, f"{cents / 100:.2f}")))
    for order_id in sorted(touched):
        if order_id in orders and rng.random() < 0.15:
            orders.discard(order_id)
            for line_id in [line_id for line_id, (owner, _) in lines.items() if owner == order_id]:
                del lines[line_id]
                changes.append(("lines", line_id, None))
            changes.append(("orders", order_id, None))
        else:
            orders.add(order_id)
            total = sum(cents for owner, cents in lines.values() if owner == order_id)
            changes.append(("orders", order_id, order(order_id, f"{total / 100:.2f}")))
    return changes


def swap(output: RightOutput, rng: random.Random) -> None:
    """Two values of one document change places."""
    pairs = [
        (i, j)
        for i, one in enumerate(output.outputs)
        for j, other in enumerate(output.outputs[:i])
        if one.key == other.key and one.document != other.document
    ]
    i, j = rng.choice(pairs)
    documents = output.outputs[i].document, output.outputs[j].document
    output.change(j, document=documents[0])
    output.change(i, document=documents[1])


def drop(output: RightOutput, rng: random.Random) -> None:
    """A document's last value never appears."""
    last = {str(each.key): i for i, each in enumerate(output.outputs)}
    del output.outputs[rng.choice(list(last.values()))]


def duplicate(output: RightOutput, rng: random.Random) -> None:
    """An output appears twice, one right after the other."""
    position = rng.randrange(len(output.outputs))
    output.outputs.insert(position, replace(output.outputs[position]))


def halve(output: RightOutput, rng: random.Random) -> None:
    """A document shows a part of its transaction."""
    full = [i for i, each in enumerate(output.outputs) if each.document and each.document["lines"]]
    position = rng.choice(full)
    document = output.outputs[position].document
    assert document is not None
    output.change(position, document={**document, "lines": document["lines"][1:]})


def make_stale(output: RightOutput, rng: random.Random) -> None:
    """After its last value a document shows an earlier one."""
    by_key: dict[str, list[Output]] = {}
    for each in output.outputs:
        by_key.setdefault(str(each.key), []).append(each)
    changing = [outputs for outputs in by_key.values() if outputs[0].document != outputs[-1].document]
    outputs = rng.choice(changing)
    output.outputs.append(replace(outputs[0], place=(0, 10_000), lsn=outputs[-1].lsn))


FAULTS = [swap, drop, duplicate, halve, make_stale]


@pytest.mark.parametrize("claims", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_right_output_is_clean(judged: Judge, seed: int, claims: bool) -> None:
    rng = random.Random(seed)
    log = random_log(rng)
    output = RightOutput.publish(log, per_batch=rng.randint(1, 7), partitions=rng.randint(1, 3))
    certificate = judged(log, output if claims else output.without_claims(), mode=Mode.BOTH)
    assert certificate.examples == {}
    assert certificate.is_clean


@pytest.mark.parametrize("claims", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_one_fault_is_found(
    judged: Judge, seed: int, fault: Callable[[RightOutput, random.Random], None], claims: bool
) -> None:
    rng = random.Random(seed)
    log = random_log(rng)
    output = RightOutput.publish(log, per_batch=rng.randint(1, 3))
    output = output if claims else output.without_claims()
    fault(output, rng)
    assert judged(log, output).findings > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_records_in_any_order_of_partitions_make_the_same_history(judged: Judge, seed: int) -> None:
    rng = random.Random(seed)
    log = random_log(rng)
    moments = {(each.topic, each.key): rng.random() for each in log.records}
    mixed = sorted(log.records, key=lambda each: moments[each.topic, each.key])
    again = rng.choices(mixed, k=10)
    log.records = [*mixed, *again]
    assert judged(log, RightOutput.publish(log, per_batch=3)).examples == {}
