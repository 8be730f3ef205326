"""Where a pipeline's folder has the tests of its views."""

from pathlib import Path
from typing import Final

FOLDER: Final = "tests"
SUFFIXES: Final = (".yaml", ".yml", ".json")


def case_files(pipeline: Path) -> list[Path]:
    """Returns the files of tests in a pipeline's folder, by name."""
    paths = (pipeline / FOLDER).rglob("*")
    return sorted(path for path in paths if path.suffix in SUFFIXES and path.is_file())


def pipeline_of(path: Path) -> Path | None:
    """Returns the pipeline's folder that a file of tests belongs to; None: the file is something else."""
    if path.suffix not in SUFFIXES:
        return None
    for parent in path.parents:
        if parent.name == FOLDER and (parent.parent / "pipeline.toml").is_file():
            return parent.parent
    return None
