"""``slackwater indoubt`` and ``slackwater messaging audit`` over real servers."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from slackwater.cli import main
from slackwater.dev import KafkaBroker, PostgresServer
from slackwater.protocol import SystemClock
from slackwater_lab.messaging.sending.world import World
from slackwater_lab.probes import At, Death
from slackwater_messaging import (
    DeadLetters,
    Message,
    PollingRelay,
    PreparedSender,
    RelaySettings,
    SenderSettings,
    SendStep,
)
from slackwater_messaging.kafka import SenderProducer

pytestmark = pytest.mark.integration


@pytest.fixture
def world(postgres_server: PostgresServer, kafka_broker: KafkaBroker) -> Iterator[World]:
    made = World(postgres_server.dsn(), kafka_broker.bootstrap)
    yield made
    made.connection.close()


def run(world: World, *words: str) -> int:
    return main.run([*words, "--postgres-url", world.dsn, "--bootstrap", world.bootstrap])


def die(world: World, name: str, step: SendStep, number: int) -> None:
    """Leaves a prepared transaction, as a service does that is killed."""

    def do() -> None:
        with psycopg.connect(world.dsn) as connection:
            sender = PreparedSender(world.kafka, name, probe=At(step))
            with sender.transaction(connection) as sending:
                sending.connection.execute(*world.insert(number))
                sending.send(world.message(str(number)))

    with pytest.MonkeyPatch.context() as dead:
        dead.setattr(SenderProducer, "abort", lambda _: None)
        with pytest.raises(Death):
            do()


@pytest.mark.full
def test_transactions_in_doubt_are_shown_and_decided(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, foreign = f"{world.name}-1", f"{world.name}-2", f"{world.name}-foreign"
    die(world, one, SendStep.KAFKA_COMMITTED, 1)
    die(world, two, SendStep.PREPARED, 2)
    other = psycopg.connect(world.dsn)
    other.tpc_begin(foreign)
    other.execute(*world.insert(3))
    other.tpc_prepare()
    other.close()
    assert run(world, "indoubt", "list") == 1
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown[1:] if world.name in line][-1] == foreign
    by_sender = {name: line for name in (one, two) for line in shown if f":{name}:" in line}
    assert "has committed it" in by_sender[one]
    assert "has not committed it" in by_sender[two]
    assert "its owner has to decide" in next(line for line in shown if foreign in line)

    assert run(world, "indoubt", "list", "--json") == 1
    found = {each["sender"]: each for each in map(json.loads, capsys.readouterr().out.splitlines())}
    assert (found[one]["kafka"], found[two]["kafka"]) == ("committed", "not committed")

    assert run(world, "indoubt", "resolve", "--sender", one) == 0
    assert capsys.readouterr().out.endswith(": committed\n")
    assert run(world, "indoubt", "resolve", "--all") == 0
    assert capsys.readouterr().out.endswith(": rolled back\n")
    assert run(world, "indoubt", "resolve", "--sender", one) == 0
    assert "no prepared transaction in this database" in capsys.readouterr().out
    assert (world.numbers, world.values()) == ([1], ["1"])
    world.connection.execute(f"ROLLBACK PREPARED '{foreign}'".encode())


def test_it_has_to_be_said_whose_transactions_are_decided(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(world, "indoubt", "resolve") == 2
    assert "use --sender NAME or --all" in capsys.readouterr().err
    assert run(world, "indoubt", "resolve", "--all", "--sender", "x") == 2


def test_nothing_in_doubt_is_said_so(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(world, "indoubt", "list") == 0
    assert capsys.readouterr().out == "no transaction is prepared\n"


@pytest.mark.full
def test_an_audit_names_what_is_lost_and_late(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    now = SystemClock().now()
    world.connection.execute(f"CREATE TABLE {world.name}_paid (id text, paid_at timestamptz)".encode())
    insert = f"INSERT INTO {world.name}_paid VALUES (%s, %s)".encode()  # noqa: S608 - our own name
    for each in ("a", "b"):
        world.connection.execute(insert, [each, now - timedelta(minutes=5)])
    world.outbox.send(world.connection, Message(topic=world.topic, key=b"a", value=b""))
    with PollingRelay(world.dsn, world.kafka, world.outbox) as relay:
        relay.run_once()
    query = f"SELECT id, paid_at FROM {world.name}_paid WHERE paid_at >= %(start)s AND paid_at < %(end)s"  # noqa: S608
    words = ("messaging", "audit", "--topic", world.topic, "--query", query)
    assert run(world, *words) == 1
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["committed"].startswith("2 messages, ")
    assert rows["lost"] == "1: b"
    assert rows["late"].startswith("1: a (+")
    assert (rows["repeated"], rows["ghosts"]) == ("0", "0")
    assert run(world, *words, "--json", "--since", "4m") == 0
    assert json.loads(capsys.readouterr().out) == {
        "committed": 0,
        "lost": [],
        "repeated": [],
        "ghosts": [],
        "late": {},
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--since", "yesterday"), "expected a time like"),
        (("--since", "1m", "--until", "1h"), "ends before it starts"),
        (("--id", "offset"), "expected key, header:NAME"),
        (("--query", "SELECT 1"), "expected SELECT id, committed_at"),
        (("--query", "SELECT nonsense"), "nonsense"),
    ],
)
def test_an_audit_that_cannot_be_made_says_why(
    world: World, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    common = ("messaging", "audit", "--topic", world.topic, "--query", "SELECT 1, now()")
    assert run(world, *common, *words) in (1, 2)
    assert said in capsys.readouterr().err


NOWHERE = "127.0.0.1:1"
AWAY = [
    ("messaging", "audit", "--topic", "paid", "--query", "SELECT 'k', now() WHERE now() > %(start)s"),
    ("indoubt", "resolve", "--sender", "shop-1"),
]


def is_ours(line: str) -> bool:
    """Whether a line of standard error is the command's or of a client that looks for `NOWHERE`."""
    return not line.startswith("%") or f"{NOWHERE}/" in line


@pytest.mark.full
@pytest.mark.parametrize("words", AWAY)
def test_a_kafka_that_is_away_is_one_line_with_what_to_do(
    world: World, words: tuple[str, ...], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka itself would write a line for each of its attempts.

    Clients that other tests of this process left behind may write of other addresses meanwhile.
    """
    monkeypatch.setattr("slackwater_messaging.reading._SECONDS", 3.0)
    short = SenderSettings(request_timeout=timedelta(seconds=3))
    monkeypatch.setattr("slackwater_messaging.sender.SenderSettings", lambda: short)
    assert main.run([*words, "--postgres-url", world.dsn, "--bootstrap", NOWHERE]) == 1
    *waits, line = [line for line in capfd.readouterr().err.splitlines() if is_ours(line)]
    assert len(waits) <= 1, waits
    assert line.startswith("error: ")
    assert NOWHERE in line
    assert "check that the brokers are up and reachable" in line


def test_sigterm_ends_an_audit_that_waits_for_kafka(world: World) -> None:
    """Fails if the signal is heard only when Kafka has been given up, which ends with another code."""
    mine = f"audit-{world.name}"
    url = f"{world.dsn}?application_name={mine}"
    command = [sys.executable, "-m", "slackwater", *AWAY[0], "--postgres-url", url, "--bootstrap", NOWHERE]
    process = subprocess.Popen(command)
    query = "SELECT FROM pg_stat_activity WHERE application_name = %s AND state = 'idle in transaction'"
    while world.connection.execute(query, [mine]).fetchone() is None:
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM


@pytest.fixture
def letters(world: World) -> DeadLetters:
    """The table of a world, with a message that could not be sent."""
    made = DeadLetters(f"{world.name}_letters", attempts=1)
    made.create(world.connection)
    world.outbox.send(world.connection, Message(topic=f"{world.name}.nowhere", key=b"\xff", value=b"seven"))
    settings = RelaySettings(dead_letters=made, request_timeout=timedelta(seconds=4))
    with PollingRelay(world.dsn, world.kafka, world.outbox, settings=settings) as relay:
        relay.run_once()
    return made


def run_letters(world: World, letters: DeadLetters, *words: str) -> int:
    command = ["messaging", "dead-letters", *words, "--postgres-url", world.dsn, "--table", letters.table]
    return main.run(command)


def test_dead_letters_are_shown_handed_back_and_deleted(
    world: World, letters: DeadLetters, capsys: pytest.CaptureFixture[str]
) -> None:
    (letter,) = letters.find(world.connection)
    assert run_letters(world, letters, "list") == 1
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["id", "origin", "topic", "key", "attempts", "died", "state", "reason"]
    assert f"outbox {world.outbox.table}" in row
    assert "ConfigError: writing a message failed" in row
    assert run_letters(world, letters, "list", "--json") == 1
    shown = json.loads(capsys.readouterr().out)
    assert run_letters(world, letters, "show", str(letter.id)) == 0
    assert json.loads(capsys.readouterr().out) == shown
    assert (shown["key"], shown["value"], shown["attempts"]) == ("\\xff", "seven", 1)

    assert run_letters(world, letters, "retry", str(letter.id)) == 0
    assert capsys.readouterr().out == "1 handed back\n"
    assert (world.waiting, letters.find(world.connection)) == (1, [])
    assert run_letters(world, letters, "list") == 0
    assert capsys.readouterr().out == "there are no dead letters\n"


def test_dead_letters_have_to_be_named_and_may_be_deleted(
    world: World, letters: DeadLetters, capsys: pytest.CaptureFixture[str]
) -> None:
    (letter,) = letters.find(world.connection)
    assert run_letters(world, letters, "retry") == 2
    assert "give their ids, or --all" in capsys.readouterr().err
    assert run_letters(world, letters, "delete", str(letter.id), "0") == 0
    assert capsys.readouterr().out == "1 deleted\n"
    assert run_letters(world, letters, "retry", "--all") == 0
    assert capsys.readouterr().out == "0 handed back\n"


def test_a_table_of_dead_letters_that_is_not_there_is_named(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_letters(world, DeadLetters(f"{world.name}_none"), "list") == 1
    assert f"the table {world.name}_none of dead letters cannot be used" in capsys.readouterr().err
