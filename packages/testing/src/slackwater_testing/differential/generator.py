"""Random cases."""

from collections.abc import Sequence

from slackwater_testing.differential.case import Batch, Case, Feature
from slackwater_testing.differential.choices import Choices
from slackwater_testing.differential.history_generator import make_tables, make_transactions
from slackwater_testing.differential.query_generator import make_views

_BUCKETS = (1, 2, 3, 5, 8)


def generate(seed: int, only: Sequence[str] = ()) -> Case:
    """The case of a seed.

    Args:
        seed: Equal seeds give equal cases.
        only: Names of the features that may occur; empty: all.
    """
    choices = Choices(seed, only)
    tables = make_tables(choices)
    views = make_views(choices, tables)
    transactions = make_transactions(choices, tables)
    every_commit = choices.is_allowed(Feature.EVERY_COMMIT) and (
        choices.chance(0.6) or not choices.is_allowed(Feature.LATEST)
    )
    choices.may(Feature.EVERY_COMMIT if every_commit else Feature.LATEST, 1)
    return Case(
        seed=seed,
        tables=tables,
        views=views,
        transactions=transactions,
        batches=_batches(choices, len(transactions)),
        buckets=choices.one(_BUCKETS),
        every_commit=every_commit,
        features=frozenset(choices.used),
        only=tuple(only),
    )


def _batches(choices: Choices, transactions: int) -> tuple[Batch, ...]:
    may_lose = choices.may(Feature.LOST_INDEX, 0.3)
    may_repeat = choices.may(Feature.REPEATED_BATCH, 0.3)
    most = choices.one((1, 3, 8, transactions))
    batches = []
    while transactions > 0:
        size = min(transactions, choices.number(1, most))
        transactions -= size
        tasks = choices.one((1, 1, 2, 3))
        loses, repeats = may_lose and choices.chance(0.3), may_repeat and choices.chance(0.3)
        batches.append(Batch(size, tasks, loses, repeats))
    return tuple(batches)
