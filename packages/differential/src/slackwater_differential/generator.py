"""Random cases."""

from collections.abc import Sequence

from slackwater_differential.case import Batch, Case, Feature
from slackwater_differential.dice import Dice
from slackwater_differential.history_generator import make_transactions
from slackwater_differential.query_generator import make_views
from slackwater_differential.schema_generator import make_tables

_BUCKETS = (1, 2, 3, 5, 8)


def generate(seed: int, only: Sequence[str] = ()) -> Case:
    """The case of a seed.

    Args:
        seed: Equal seeds give equal cases.
        only: Names of the features that may occur; empty: all.
    """
    dice = Dice(seed, only)
    tables = make_tables(dice)
    views = make_views(dice, tables)
    transactions = make_transactions(dice, tables)
    every_commit = dice.is_allowed(Feature.EVERY_COMMIT) and (
        dice.chance(0.6) or not dice.is_allowed(Feature.LATEST)
    )
    dice.may(Feature.EVERY_COMMIT if every_commit else Feature.LATEST, 1)
    return Case(
        seed=seed,
        tables=tables,
        views=views,
        transactions=transactions,
        batches=_batches(dice, len(transactions)),
        buckets=dice.one(_BUCKETS),
        every_commit=every_commit,
        features=frozenset(dice.used),
        only=tuple(only),
    )


def _batches(dice: Dice, transactions: int) -> tuple[Batch, ...]:
    may_lose = dice.may(Feature.LOST_INDEX, 0.3)
    may_repeat = dice.may(Feature.REPEATED_BATCH, 0.3)
    most = dice.one((1, 3, 8, transactions))
    batches = []
    while transactions > 0:
        size = min(transactions, dice.number(1, most))
        transactions -= size
        tasks = dice.one((1, 1, 2, 3))
        loses, repeats = may_lose and dice.chance(0.3), may_repeat and dice.chance(0.3)
        batches.append(Batch(size, tasks, loses, repeats))
    return tuple(batches)
