"""A bank: transfers move money between two accounts and leave an entry in each.

Invariants in every committed state: an account's balance is its opening balance plus the sum of its entries;
the sum of all balances never changes.

An account belongs to nobody and is changed relative to what it is; a transfer and its entries belong to the
writer that made it.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import ClassVar, NamedTuple

from slackwater_lab.workloads.workload import (
    BusinessTransaction,
    Delete,
    Insert,
    Operation,
    Plus,
    Update,
    Value,
    Workload,
    money,
    workload_pipeline,
)

_ACCOUNTS = "bank.accounts"
_ENTRIES = "bank.entries"
_TRANSFERS = "bank.transfers"

_OPENING_CENTS = 1_000_00
_KEPT_PER_ACCOUNT = 20
"""Entries that an account has on average, at most: older transfers are settled, which removes them."""


class _Transfer(NamedTuple):
    """A transfer, as its writer knows it. Its entries are ``2 * id`` and ``2 * id + 1``."""

    id: int
    source: int
    target: int
    cents: int


@dataclass(frozen=True, slots=True)
class TransfersWorkload(Workload):
    """Transfers, corrections of their amounts, settlement of old ones; some are rolled back.

    ``size`` is the number of accounts, at least two.
    """

    name: ClassVar[str] = "transfers"
    pipeline: Path = field(default=workload_pipeline("transfers"), kw_only=True)

    def first(self) -> Iterator[BusinessTransaction]:
        opening = money(_OPENING_CENTS)
        for account in range(1, max(2, self.size) + 1):
            row: dict[str, Value] = {
                "id": account,
                "owner": f"owner-{account}",
                "opening": opening,
                "balance": opening,
            }
            yield BusinessTransaction((Insert(_ACCOUNTS, row),))

    def transactions(self, writer: int, writers: int) -> Iterator[BusinessTransaction]:
        return _Writer(self, writer, writers).transactions()


class _Writer:
    def __init__(self, workload: TransfersWorkload, writer: int, writers: int) -> None:
        accounts = self._accounts = max(2, workload.size)
        self._random = workload.new_random(writer, writers)
        self._ids = count(1 + writer, writers)
        self._own: deque[_Transfer] = deque()
        self._kept = max(1, _KEPT_PER_ACCOUNT * accounts // (2 * writers))

    def transactions(self) -> Iterator[BusinessTransaction]:
        rng = self._random.random
        while True:
            choice = rng()
            if choice < 0.03:
                yield BusinessTransaction(self._insert(self._new(next(self._ids))), is_rolled_back=True)
            elif choice < 0.13 and self._own:
                yield BusinessTransaction(self._correct())
            elif len(self._own) > self._kept:
                yield BusinessTransaction(self._settle())
            else:
                transfer = self._new(next(self._ids))
                self._own.append(transfer)
                yield BusinessTransaction(self._insert(transfer))

    def _new(self, transfer_id: int) -> _Transfer:
        rng, accounts = self._random.random, self._accounts
        source = int(rng() * accounts)
        target = (source + 1 + int(rng() * (accounts - 1))) % accounts
        return _Transfer(transfer_id, source + 1, target + 1, 1 + int(rng() * 10_000))

    def _insert(self, new: _Transfer) -> tuple[Operation, ...]:
        amount, minus = money(new.cents), money(-new.cents)
        row: dict[str, Value] = {
            "id": new.id,
            "from_account": new.source,
            "to_account": new.target,
            "amount": amount,
            "note": None if new.id % 3 else f'transfer "{new.id}"\tto {new.target}',
        }
        entries = (
            Insert(_TRANSFERS, row),
            self._entry(2 * new.id, new, new.source, minus),
            self._entry(2 * new.id + 1, new, new.target, amount),
        )
        return entries + self._both(new, "balance", new.cents)

    @staticmethod
    def _entry(entry_id: int, transfer: _Transfer, account: int, amount: Decimal) -> Insert:
        row: dict[str, Value] = {
            "id": entry_id,
            "account_id": account,
            "transfer_id": transfer.id,
            "amount": amount,
        }
        return Insert(_ENTRIES, row)

    def _correct(self) -> tuple[Operation, ...]:
        old = self._own.popleft()
        new = old._replace(cents=1 + int(self._random.random() * 10_000))
        self._own.append(new)
        amount = money(new.cents)
        return (
            Update(_TRANSFERS, new.id, {"amount": amount}),
            Update(_ENTRIES, 2 * new.id, {"amount": money(-new.cents)}),
            Update(_ENTRIES, 2 * new.id + 1, {"amount": amount}),
            *self._both(new, "balance", new.cents - old.cents),
        )

    def _settle(self) -> tuple[Operation, ...]:
        """An old transfer and its entries go into the opening balances."""
        old = self._own.popleft()
        return (
            Delete(_ENTRIES, 2 * old.id),
            Delete(_ENTRIES, 2 * old.id + 1),
            Delete(_TRANSFERS, old.id),
            *self._both(old, "opening", old.cents),
        )

    def _both(self, transfer: _Transfer, column: str, cents: int) -> tuple[Operation, Operation]:
        """Both accounts, in the order of their ids: no two writers wait for each other."""
        debit = Update(_ACCOUNTS, transfer.source, {column: Plus(money(-cents))})
        credit = Update(_ACCOUNTS, transfer.target, {column: Plus(money(cents))})
        return (debit, credit) if transfer.source < transfer.target else (credit, debit)
