from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slackwater.engine.index import BucketIndex
from slackwater.engine.lmdb_index import LmdbIndex
from slackwater.engine.local import MemoryIndex
from slackwater.sql.plan import EnginePlan
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

TABLES = """
CREATE TABLE inventory.orders (id bigint PRIMARY KEY, customer text NOT NULL, total numeric(12,2));
CREATE TABLE inventory.order_lines (id bigint PRIMARY KEY, order_id bigint, product text NOT NULL);
ALTER TABLE inventory.order_lines REPLICA IDENTITY FULL;
"""
VIEW = """
SELECT TRANSACTIONALLY o.id, o.customer, o.total, count(l.id) AS line_count,
    list({'id': l.id, 'product': l.product} ORDER BY l.id) FILTER (l.id IS NOT NULL) AS lines
FROM inventory.orders o LEFT JOIN inventory.order_lines l ON l.order_id = o.id
GROUP BY o.id
"""

MakeIndex = Callable[[], BucketIndex]


@pytest.fixture(scope="session")
def plan() -> EnginePlan:
    return compile_pipeline([("views/orders.sql", VIEW)], parse_catalog({"tables.sql": TABLES}))


@pytest.fixture(params=["memory", "lmdb"])
def make_index(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeIndex]:
    """Makes empty indexes of each kind."""
    made: list[LmdbIndex] = []

    def lmdb_index() -> BucketIndex:
        made.append(LmdbIndex(tmp_path_factory.mktemp("index") / "0", initial_map_bytes=1 << 20))
        return made[-1]

    yield MemoryIndex if request.param == "memory" else lmdb_index
    for index in made:
        index.close()


@pytest.fixture
def index_folder(tmp_path: Path) -> Path:
    return tmp_path / "query" / "orders" / "0"
