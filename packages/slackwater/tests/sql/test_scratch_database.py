# ruff: noqa: S608 - it is only read
"""Views are read alike wherever they are read."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from slackwater.sql.catalog import Catalog
from slackwater.sql.errors import SqlTextError
from slackwater.sql.frontend import ViewText, read_view

SQL = "SELECT TRANSACTIONALLY o.id, o.customer FROM orders o"


def test_views_are_read_in_several_threads_at_once(catalog: Catalog) -> None:
    expected = read_view(ViewText("v.sql", SQL), catalog)

    with ThreadPoolExecutor(4) as threads:
        views = list(threads.map(lambda _: read_view(ViewText("v.sql", SQL), catalog), range(8)))

    assert views == [expected] * 8


def test_a_refused_view_leaves_nothing_behind(catalog: Catalog) -> None:
    expected = read_view(ViewText("v.sql", SQL), catalog)
    for mistake in ("nofunction(o.id)", "o.customer + 1", "o.nothing", "sum(o.id)"):
        with pytest.raises(SqlTextError):
            read_view(
                ViewText("v.sql", f"SELECT TRANSACTIONALLY o.id, {mistake} AS x FROM orders o"), catalog
            )

    assert read_view(ViewText("v.sql", SQL), catalog) == expected
