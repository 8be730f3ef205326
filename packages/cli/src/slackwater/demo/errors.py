"""Errors of the demo, beside those of :mod:`slackwater_testing.errors`."""

from pathlib import Path

from slackwater_protocol import SlackwaterError


class UnsuitablePipelineError(SlackwaterError):
    """A pipeline the demo cannot judge."""

    def __init__(self, folder: Path, source: str, tables: tuple[str, ...]) -> None:
        super().__init__(folder, source, tables)
        self.folder = folder
        self.source = source
        self.tables = tables

    def __str__(self) -> str:
        return (
            f"the pipeline in {self.folder} does not fit the demo, which needs source {self.source!r} and "
            f"a view over {' and '.join(self.tables)}; take pipelines/orders or a copy of it"
        )
