"""A service that moves money between accounts, and writes each payment to Kafka as one transaction.

    python transactional_service.py BOOTSTRAP SOURCE PAYMENTS

It numbers its payments, and a payment's number is its commit position: so the position of the newest commit
says where the service continues when it starts again, whatever happened to it. Payments here are made up from
their numbers; a service that is asked for them keeps the requests until they are committed.
"""

import random
import sys
import time
from collections.abc import Iterator

from slackwater.client import Commit, TransactionalProducer
from slackwater.protocol import KafkaSettings

ACCOUNTS = range(1, 9)
OPENING_BALANCE = 1000


def payment(number: int) -> tuple[int, int, int]:
    """Returns payer, receiver and amount."""
    rng = random.Random(number)  # noqa: S311 - made up, and the same each time
    payer, receiver = rng.sample(ACCOUNTS, 2)
    return payer, receiver, rng.randint(1, 50)


def balances() -> Iterator[dict[int, int]]:
    """Yields the balances after the opening of the accounts, which is number 1, and after each payment."""
    balance = dict.fromkeys(ACCOUNTS, OPENING_BALANCE)
    number = 1
    while True:
        yield balance
        number += 1
        payer, receiver, amount = payment(number)
        balance = {
            **balance,
            payer: balance[payer] - amount,
            receiver: balance[receiver] + amount,
        }


def serve(kafka: KafkaSettings, source: str, payments: int) -> None:
    """Opens the accounts and makes payments, from where an earlier instance ended."""
    with TransactionalProducer(kafka, source) as producer:
        for table in ("bank.account", "bank.payment"):
            producer.make_table(table)
        done = 0 if producer.position is None else producer.position.lsn
        for number, balance in enumerate(balances(), 1):
            if number > payments:
                break
            if number <= done:
                continue
            commit = Commit(
                source=source, timeline=1, lsn=number, xid=number, commit_ts_ms=time.time_ns() // 1_000_000
            )
            with producer.transaction(commit) as transaction:
                if number == 1:
                    for account in ACCOUNTS:
                        transaction.insert("bank.account", {"id": account}, {"balance": balance[account]})
                    continue
                payer, receiver, amount = payment(number)
                row = {"payer": payer, "receiver": receiver, "amount": amount}
                transaction.insert("bank.payment", {"id": number}, row)
                for account in (payer, receiver):
                    transaction.upsert("bank.account", {"id": account}, {"balance": balance[account]})


if __name__ == "__main__":
    serve(KafkaSettings(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
