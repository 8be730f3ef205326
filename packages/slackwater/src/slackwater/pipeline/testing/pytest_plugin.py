"""Collects the tests of views in files, so that ``pytest DIR`` runs them together with those in Python.

These are the YAML and JSON files in the folder ``tests`` of a pipeline's folder. pytest itself loads this
module (entry point), so importing it must be cheap.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from slackwater.pipeline.testing.locations import pipeline_of

if TYPE_CHECKING:
    from slackwater.pipeline.testing.cases import ViewCase
    from slackwater.pipeline.testing.view_test import ViewTest

_TESTS = pytest.StashKey[dict[Path, "ViewTest"]]()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collects the test files of a pipeline."""
    folder = pipeline_of(file_path)
    if folder is None:
        return None
    file: _ViewFile = _ViewFile.from_parent(parent, path=file_path)
    file.folder = folder
    return file


class _ViewFile(pytest.File):
    folder: Path

    def collect(self) -> Iterator[pytest.Item]:
        from slackwater.pipeline.testing.cases import read_cases

        for case in read_cases(self.path):
            item: _ViewItem = _ViewItem.from_parent(self, name=case.name)
            item.case, item.folder = case, self.folder
            yield item

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return _in_words(excinfo) or super().repr_failure(excinfo)


class _ViewItem(pytest.Item):
    case: "ViewCase"
    folder: Path

    def runtest(self) -> None:
        from slackwater.pipeline.testing.view_test import ViewTest

        tests = self.config.stash.setdefault(_TESTS, {})
        if self.folder not in tests:
            tests[self.folder] = ViewTest(self.folder)
        self.case.run(tests[self.folder])

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return _in_words(excinfo) or super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.case.transactions.line - 1, self.name


def _in_words(excinfo: pytest.ExceptionInfo[BaseException]) -> str:
    """Returns what is wrong with a test; empty if the test is not the cause."""
    from slackwater.protocol import SlackwaterError

    return str(excinfo.value) if isinstance(excinfo.value, AssertionError | SlackwaterError) else ""
