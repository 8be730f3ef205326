"""The location of the tests of views in a pipeline's folder."""

from pathlib import Path
from typing import Final

FOLDER: Final = "tests"
SUFFIXES: Final = (".yaml", ".yml", ".json")


def case_files(pipeline: Path) -> list[Path]:
    """Returns the test files in a pipeline's folder, sorted by name."""
    paths = (pipeline / FOLDER).rglob("*")
    return sorted(path for path in paths if path.suffix in SUFFIXES and path.is_file())


def pipeline_of(path: Path) -> Path | None:
    """Returns the folder of the pipeline that a test file belongs to; None if it is not a test file."""
    if path.suffix not in SUFFIXES:
        return None
    for parent in path.parents:
        if parent.name == FOLDER and (parent.parent / "pipeline.toml").is_file():
            return parent.parent
    return None
