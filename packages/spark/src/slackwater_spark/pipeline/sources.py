"""The SQL of a pipeline folder: declared tables and views."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from slackwater_engine.scope import Scope
from slackwater_spark.pipeline.errors import DefinitionError
from slackwater_sql.catalog import Catalog
from slackwater_sql.compiler import compile_pipeline
from slackwater_sql.plan import EnginePlan
from slackwater_sql.postgres import parse_catalog


@dataclass(frozen=True)
class PipelineSources:
    """What a pipeline's plan is made of."""

    catalog: Catalog
    """The declared tables."""
    views: tuple[tuple[str, str], ...]
    """Path and text of each view, by name."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the views."""
        return tuple(Path(path).stem for path, _ in self.views)

    def plan(
        self, published: Collection[str], catalog: Catalog | None = None, scope: Scope = Scope.STRICT
    ) -> EnginePlan:
        """The plan of the published views, perhaps over other tables.

        Raises:
            SqlTextError: a view is not supported; with its place.
        """
        accumulates = scope is Scope.STRICT
        return compile_pipeline(
            self.views, catalog or self.catalog, published=published, accumulates=accumulates
        )


def read_sources(folder: Path) -> PipelineSources:
    """The SQL files of a pipeline folder.

    Raises:
        DefinitionError: a kind of file is missing.
        SqlTextError: a schema file is not supported; with its place.
    """
    return PipelineSources(_catalog(folder), _views(folder))


def _catalog(folder: Path) -> Catalog:
    paths = [path for path in (folder / "schema.sql",) if path.is_file()]
    paths += sorted((folder / "schema").glob("*.sql"))
    if not paths:
        hint = "`slackwater schema pull` writes it"
        raise DefinitionError(str(folder / "schema.sql"), "", "no such file", hint)
    return parse_catalog({str(path): path.read_text(encoding="utf-8") for path in paths})


def _views(folder: Path) -> tuple[tuple[str, str], ...]:
    paths = sorted((folder / "views").glob("*.sql"))
    if not paths:
        raise DefinitionError(str(folder / "views"), "", "no view", "expected files views/<name>.sql")
    return tuple((str(path), path.read_text(encoding="utf-8")) for path in paths)
