"""Keys that change, in every way that PostgreSQL allows, between a real connector and a real pipeline.

The primary key of one table is deferrable, so rows have equal keys within a transaction; rows of the other
one have values that are stored out of line, and keep them while their keys change. Judged by the certifier,
once against the database, and once against the topics alone.
"""

import random
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from slackwater.dev import DevStack
from slackwater.protocol import parse_position
from slackwater_certify import Connections, Mode, certify, load_specification
from slackwater_lab.programs import Product
from slackwater_lab.watching import Visibility

pytestmark = pytest.mark.system

SEED = 5
SECONDS = 900.0
SCHEMA = """
CREATE TABLE desk.places (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, name text NOT NULL);
ALTER TABLE desk.places REPLICA IDENTITY FULL;
CREATE TABLE desk.papers (id int PRIMARY KEY, body text, raw bytea, pages int[], version int NOT NULL);
"""
STORED = (
    "ALTER TABLE desk.papers ALTER body SET STORAGE EXTERNAL, ALTER raw SET STORAGE EXTERNAL, "
    "ALTER pages SET STORAGE EXTERNAL"
)
FILES = {
    "schema.sql": SCHEMA,
    "views/desk.sql": """
        SELECT TRANSACTIONALLY p.id, p.name, d.body, d.raw, d.pages, d.version
        FROM desk.places p LEFT JOIN desk.papers d ON d.id = p.id
    """,
    "pipeline.toml": """
name = "desk"
source = "inv"
emit = "transactions"
[output]
topic = "desk"
partitions = 2
""",
    "certify.toml": """
[output]
kind = "topic"
name = "desk"
commits = "desk.commits"
lsn_header = "slackwater-commit-lsn"
[source]
name = "inv"
schema = "schema.sql"
[view]
sql = "views/desk.sql"
key = ["id"]
[view.rows]
"desk.places" = ["id"]
"desk.papers" = ["id"]
""",
}


class Desk:
    """Writes transactions that change keys. Deterministic for a seed."""

    def __init__(self, connection: psycopg.Connection, seed: int) -> None:
        self._connection = connection
        self._rng = random.Random(seed)

    def fill(self) -> None:
        with self._connection.transaction():
            self._execute("INSERT INTO desk.places SELECT n, 'place ' || n FROM generate_series(1, 8) n")
            for number in range(1, 9):
                self.write(number)

    def commit(self) -> None:
        with self._connection.transaction():
            for _ in range(self._rng.randint(1, 3)):
                self._rng.choice(self._kinds)(self)

    def write(self, number: int) -> None:
        letter = self._rng.choice("abcdef")
        self._execute(
            "INSERT INTO desk.papers VALUES (%s, repeat(%s, 6000), repeat(%s, 6000)::bytea, "
            "array_fill(%s, ARRAY[2000]), 1)",
            *(number, letter, letter, number),
        )

    def shift(self) -> None:
        """Each row takes the key of the next one, which has not left it yet, in their physical order."""
        self._execute("UPDATE desk.places SET id = id + %s", self._rng.choice((1, -1)))

    def turn_around(self) -> None:
        row = self._connection.execute("SELECT min(id) + max(id) FROM desk.places").fetchone()
        assert row is not None
        self._execute("UPDATE desk.places SET id = %s - id, name = name || '.'", row[0])

    def replace(self) -> None:
        """A row beside the one of its key; one of the two is changed, and the other one removed."""
        row = self._connection.execute("SELECT id, name FROM desk.places ORDER BY id LIMIT 1").fetchone()
        assert row is not None
        self._execute("INSERT INTO desk.places VALUES (%s, 'new')", row[0])
        changed, removed = self._rng.choice((("new", row[1]), (row[1], "new")))
        self._execute("UPDATE desk.places SET name = 'changed' WHERE id = %s AND name = %s", row[0], changed)
        self._execute("DELETE FROM desk.places WHERE id = %s AND name = %s", row[0], removed)

    def undo(self) -> None:
        with self._connection.transaction(force_rollback=True):
            self.shift()
        self.shift()

    def empty(self) -> None:
        self._execute("SET CONSTRAINTS ALL IMMEDIATE")  # TRUNCATE does not wait for them
        self._execute("TRUNCATE desk.places")
        self._execute("SET CONSTRAINTS ALL DEFERRED")
        self._execute("INSERT INTO desk.places SELECT n, 'again ' || n FROM generate_series(1, 8) n")
        self.shift()

    def move(self) -> None:
        """Some papers take other keys, one after the other, and one of them its former key again."""
        offset = self._rng.choice((100, -100))
        self._execute(
            "UPDATE desk.papers SET id = id + %s WHERE id %% 2 = %s", offset, self._rng.randint(0, 1)
        )
        self._execute("UPDATE desk.papers SET id = id + 1000, version = version + 1")
        self._execute("UPDATE desk.papers SET id = id - 1000 WHERE id > 500")

    def exchange(self) -> None:
        first, second = self._two()
        for old, new in ((first, -1), (second, first), (-1, second)):
            self._execute("UPDATE desk.papers SET id = %s WHERE id = %s", new, old)

    def change(self) -> None:
        self._execute("UPDATE desk.papers SET version = version + 1 WHERE id = %s", self._two()[0])

    def move_and_remove(self) -> None:
        first, second = self._two()
        self._execute("UPDATE desk.papers SET id = -2 WHERE id = %s", first)
        self._execute("DELETE FROM desk.papers WHERE id = -2")
        self._execute("UPDATE desk.papers SET id = %s WHERE id = %s", first, second)
        self.write(second)

    _kinds = (shift, shift, turn_around, replace, undo, empty, move, exchange, change, move_and_remove)

    def _two(self) -> list[int]:
        rows = self._connection.execute("SELECT id FROM desk.papers ORDER BY id").fetchall()
        return self._rng.sample([number for (number,) in rows], 2)

    def _execute(self, statement: str, *parameters: object) -> None:
        self._connection.execute(statement.encode(), parameters)


def wait_until_visible(product: Product, visible: Visibility, connection: psycopg.Connection) -> None:
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    last = parse_position(str(row[0])) if row else 0
    connection.execute("INSERT INTO desk.places VALUES (1000000, 'the end')")
    assert product.wait_until(lambda: visible.newest_lsn > last, SECONDS), "\n".join(
        program.last_words() for program in product.programs.values()
    )


@pytest.mark.full
def test_documents_follow_rows_whose_keys_change(dev_stack: Callable[..., DevStack], tmp_path: Path) -> None:
    sys.stdout.write(f"seed {SEED}\n")
    pipeline = tmp_path / "desk"
    for name, text in FILES.items():
        (pipeline / name).parent.mkdir(parents=True, exist_ok=True)
        (pipeline / name).write_text(text)
    stack = dev_stack(prefix="inv", partitions=3)
    with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA desk; {SCHEMA}; {STORED}".encode())
        desk = Desk(connection, SEED)
        desk.fill()
        stack.start_connector(("desk.places", "desk.papers"))
        stack.wait_until_streaming()
        with Product(stack, tmp_path / "product") as product:
            product.start_sidecar()
            product.start_pipeline(pipeline, "--master", "local[2]", local=product.folder)
            visible = product.watch(pipeline)
            for _ in range(150):
                desk.commit()
            wait_until_visible(product, visible, connection)

    for dsn in (stack.postgres.dsn(), None):
        connections = Connections(bootstrap=stack.kafka.bootstrap, dsn=dsn)
        certificate = certify(load_specification(pipeline / "certify.toml"), connections, mode=Mode.BOTH)
        assert certificate.examples == {}
        assert certificate.is_clean
        assert certificate.transactions > 100
