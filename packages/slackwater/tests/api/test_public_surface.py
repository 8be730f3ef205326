"""What users of `slackwater.api` may rely on: names and signatures, reviewed as a file."""

import dataclasses
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import is_typeddict

import slackwater.api

GOLDEN = Path(__file__).with_name("public_surface.txt")


def surface() -> Iterator[str]:
    for name in slackwater.api.__all__:
        thing = getattr(slackwater.api, name)
        if is_typeddict(thing):
            yield f"{name}: TypedDict"
            yield from (f"    {field}: {kind}" for field, kind in thing.__annotations__.items())
        elif isinstance(thing, type):
            yield f"{name}: {_kind(thing)}"
            yield from _members(thing)
        elif inspect.isfunction(thing):
            yield f"{name}{inspect.signature(thing)}"
        else:
            yield f"{name} = {thing}"


def _kind(thing: type) -> str:
    return "error" if issubclass(thing, Exception) else "class"


def _members(thing: type) -> Iterator[str]:
    if "__init__" in vars(thing) and not issubclass(thing, Exception):
        yield f"    __init__{inspect.signature(thing.__init__)}"
    fields = {f.name for f in dataclasses.fields(thing)} if dataclasses.is_dataclass(thing) else set()
    for name, member in sorted(vars(thing).items()):
        if name.startswith("_") or name in fields:
            continue
        if isinstance(member, (classmethod, staticmethod)):
            yield f"    {type(member).__name__} {name}{inspect.signature(member.__func__)}"
        elif inspect.isfunction(member):
            yield f"    {name}{inspect.signature(member)}"
        else:
            yield f"    {name}"


def test_names_and_signatures_are_those_that_were_reviewed(tmp_path: Path) -> None:
    now = tmp_path / GOLDEN.name
    now.write_text("\n".join(surface()) + "\n")
    assert now.read_text() == GOLDEN.read_text(), f"if that is meant: cp {now} {GOLDEN}"


def test_every_public_name_has_a_docstring_that_says_what_it_promises() -> None:
    for name in slackwater.api.__all__:
        thing = getattr(slackwater.api, name)
        if inspect.isfunction(thing) or isinstance(thing, type):
            assert inspect.getdoc(thing), name


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "{'pyspark', 'pyarrow', 'duckdb', 'confluent_kafka'}"
    code = f"import sys, slackwater.api; sys.exit(str({heavy} & sys.modules.keys() or ''))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stderr.strip() == ""


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(slackwater.api, "chnges")
    assert "changes" in dir(slackwater.api)


def test_spark_starts_before_the_libraries_that_plan_views_are_loaded() -> None:
    """They take as long as half of Spark's start."""
    heavy = {
        "duckdb",
        "sqlglot",
        "pyarrow",
        "numpy",
        "pandas",
        "redis",
        "slackwater_sidecar",
        "confluent_kafka",
    }
    module = "slackwater.pipeline.session"
    code = f"import sys, {module}; sys.exit(str({heavy} & sys.modules.keys() or ''))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stderr.strip() == ""
