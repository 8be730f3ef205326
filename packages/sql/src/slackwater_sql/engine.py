"""All views of a pipeline, compiled."""

from collections.abc import Collection, Sequence
from pathlib import PurePath

from slackwater_sql.catalog import Catalog
from slackwater_sql.fingerprint import fingerprint
from slackwater_sql.frontend import ViewText, read_view
from slackwater_sql.frontend.binding import planned
from slackwater_sql.planner.cutting import Cutter, CutView
from slackwater_sql.session import open_connection
from slackwater_sql.stages import EnginePlan, PartialsOutput, PublishedView, RowsOutput, StagePlan


def compile_pipeline(
    views: Sequence[tuple[str, str]],
    catalog: Catalog,
    *,
    published: Collection[str] | None = None,
    accumulates: bool = True,
) -> EnginePlan:
    """The stages of a pipeline's views.

    Args:
        views: Path and text of each view; a view is called by the stem of its path, and may read the others.
        catalog: The declared tables.
        published: Names of the views that are written to an output, in the order of `views`; None: all.
        accumulates: Aggregates may be kept without the rows of their groups. If not, a view over one key is
            one stage that has all rows of a key, as scope `aggregate` needs it.

    Raises:
        ViewError: A view is outside of what is supported; with the place and what is supported.
    """
    texts = {PurePath(path).stem: ViewText(sql=sql, path=path) for path, sql in views}
    wanted = [name for name in texts if published is None or name in published]
    with open_connection() as connection:
        cutter = Cutter(connection, accumulates=accumulates)
        cut = []
        for number, name in enumerate(wanted):
            view = read_view(texts[name].sql, catalog, path=texts[name].path, views=texts)
            with planned(connection, texts[name]):
                cut.append(cutter.cut(view, number))
        stages = cutter.stages
    return EnginePlan(
        stages,
        tuple(
            _published(name, texts[name].sql, of_view, number, stages)
            for number, (name, of_view) in enumerate(zip(wanted, cut, strict=True))
        ),
    )


def _published(
    name: str, sql: str, cut: CutView, number: int, stages: tuple[StagePlan, ...]
) -> PublishedView:
    needed = sorted(_needed_by(number, stages))
    return PublishedView(
        name=name,
        sql=sql,
        key=cut.key,
        outputs=cut.outputs,
        fingerprint=fingerprint(stages[stage - 1] for stage in needed),
        stages=tuple(needed),
    )


def _needed_by(view: int, stages: tuple[StagePlan, ...]) -> set[int]:
    needed: set[int] = set()
    for stage in reversed(stages):
        output = stage.output
        if isinstance(output, RowsOutput):
            is_needed = any(edge.stage in needed for edge in output.edges)
        elif isinstance(output, PartialsOutput):
            is_needed = output.stage in needed
        else:
            is_needed = output.view == view
        if is_needed:
            needed.add(stage.number)
    return needed
