"""All views of a pipeline, compiled."""

from collections.abc import Collection, Sequence
from pathlib import PurePath

from slackwater.sql.catalog import Catalog
from slackwater.sql.frontend import ViewText, planning, read_view
from slackwater.sql.plan import EnginePlan
from slackwater.sql.planner.cutting import Cutter
from slackwater.sql.planner.shared_rows import with_shared_rows
from slackwater.sql.planner.sharing import shared, with_identities
from slackwater.sql.session import open_connection


def compile_pipeline(
    views: Sequence[tuple[str, str]],
    catalog: Catalog,
    *,
    published: Collection[str] | None = None,
    accumulates: bool = True,
) -> EnginePlan:
    """Returns the stages of a pipeline's views.

    Args:
        views: Path and text of each view; the stem of the path is the view's name. Views may read each other.
        catalog: The declared tables.
        published: Names of the views that are written to an output, in the order of `views`; None for all.
        accumulates: Whether aggregates may be kept without the rows of their groups. If not, a view over one
            key is a single stage with all rows of a key, as scope `aggregate` requires.

    Raises:
        SqlTextError: A view contains something that is not supported; names the place and what is supported.
    """
    texts = [text for _, text in views]
    plan = compile_separately(views, catalog, published=published, accumulates=accumulates)
    return with_shared_rows(with_identities(shared(plan, texts), texts), catalog)


def compile_separately(
    views: Sequence[tuple[str, str]],
    catalog: Catalog,
    *,
    published: Collection[str] | None = None,
    accumulates: bool = True,
) -> EnginePlan:
    """Returns the stages that the views would have if they shared none."""
    texts = {PurePath(path).stem: ViewText(path, sql) for path, sql in views}
    with open_connection() as connection:
        cutter = Cutter(connection, accumulates=accumulates)
        for name, text in texts.items():
            if published is None or name in published:
                view = read_view(text, catalog, texts)
                with planning(connection, text):
                    cutter.cut(view)
        return cutter.plan()
