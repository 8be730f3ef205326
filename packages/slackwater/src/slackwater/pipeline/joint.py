"""Joins pipelines of one source: a pipeline with the views of all of them is the next revision of each.

Equal stages of one pipeline are planned once, so what several of them compute and keep is then computed and
kept once. Readers are moved to it as to any revision, and back.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slackwater.engine.settings import Scope
from slackwater.outputs.contract import Emit, SinkKind
from slackwater.pipeline.definition import PipelineDefinition
from slackwater.pipeline.settings import revision_name
from slackwater.pipeline.toml_table import DEFINITION_FILE, read_definition, read_file
from slackwater.protocol import ConfigError
from slackwater.sql.meaning import Dialect
from slackwater.sql.postgres import join_ddl

_HEAD = "# Written by `slackwater share`, which also says whether what it was made of has changed.\n"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_REVISION = re.compile(r"[._]v[0-9]+$")

Parts = Mapping[Path, PipelineDefinition]
"""The pipelines that are to be joined, by their folders."""


def joined_files(parts: Parts, name: str, revision: int, emit: Emit | None) -> Mapping[str, str]:
    """Returns the files of a pipeline with the views of all parts, by their paths in its folder.

    Without ``emit``, all parts must publish the same states.

    Raises:
        ConfigError: They cannot be joined.
    """
    all_parts = [*parts.values()]
    first, names = all_parts[0], [each.base_name for each in all_parts]
    if len(names) < 2 or len({*names, name}) <= len(names):
        hint = "name at least two pipelines, each once; the new one has a name of its own, that of its folder"
        raise ConfigError(f"{', '.join(names)} cannot become {name!r}", hint)
    dialects = {each.sql.dialect for each in all_parts if each.sql is not None}
    if len(dialects) > 1:
        hint = "the SQL of a pipeline means one thing"
        raise ConfigError(f"{' and '.join(names)} cannot be joined: they differ in dialect", hint)
    for each in all_parts[1:]:
        _check_fits(first, each, emit)
    head = {"name": name, "source": first.source, "revision": revision, "emit": str(emit or first.emit)}
    if dialects == {Dialect.POSTGRES}:
        head["dialect"] = str(Dialect.POSTGRES)
    if owners := dict.fromkeys(each.owner for each in all_parts if each.owner):
        head["owner"] = ", ".join(owners)
    if buckets := max(each.buckets or 0 for each in all_parts):
        head["buckets"] = buckets
    of: dict[str, Sequence[str]] = {}
    for each in all_parts:
        of |= {**each.revision_of, each.base_name: each.published}
    topics = {table: topic for each in all_parts for table, topic in each.topics.items()}
    tables: dict[str, Mapping[str, Any]] = {"revision_of": of, "topics": topics}
    tables |= {f"outputs.{json.dumps(view)}": each for view, each in _outputs(parts, revision).items()}
    return {
        DEFINITION_FILE: _HEAD + "\n".join(_toml(head, tables)) + "\n",
        "schema.sql": join_ddl({str(path): text for folder in parts for path, text in _schema(folder)}),
        **{f"views/{view}.sql": text for view, text in _views(all_parts).items()},
    }


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Writes a folder that does not exist, as a whole: a process that is killed has written it or not."""
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    for path, text in files.items():
        (draft / path).parent.mkdir(parents=True, exist_ok=True)
        (draft / path).write_text(text, encoding="utf-8")
    draft.rename(folder)


def changed_files(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Returns the names of files that a folder has with another text, or only one of the two has."""
    paths = [folder / DEFINITION_FILE, *folder.rglob("*.sql")]
    there = {str(path.relative_to(folder)): read_file(folder, path) for path in paths}
    return sorted(name for name in there.keys() | files.keys() if there.get(name) != files.get(name))


def check_joined(joint: PipelineDefinition, parts: Parts) -> int:
    """Checks that each view means in a pipeline what it means in its part; returns how many stages it saves.

    Raises:
        ConfigError: A view means something else, or the parts have nothing in common.
    """
    meant = {view.name: view.fingerprint for view in joint.plan.views}
    for each in parts.values():
        other = [view.name for view in each.plan.views if meant[view.name] != view.fingerprint]
        if other:
            raise ConfigError(
                f"view {other[0]!r} of {each.name} would mean something else in {joint.name}",
                "declare tables and types in the same way in all of the pipelines",
            )
    saved = sum(map(_keepers, parts.values())) - _keepers(joint)
    if not saved:
        raise ConfigError(
            f"{', '.join(each.name for each in parts.values())} have no stage and no kept rows in common",
            "one pipeline with all of their views would save nothing",
        )
    return saved


def _keepers(definition: PipelineDefinition) -> int:
    """Returns how many stages keep something of their own."""
    return sum(not stage.kept_by for stage in definition.plan.stages)


def _check_fits(first: PipelineDefinition, other: PipelineDefinition, emit: Emit | None) -> None:
    def refuse(problem: str, hint: str) -> None:
        raise ConfigError(f"{first.name} and {other.name} cannot be joined: {problem}", hint)

    if Scope.AGGREGATE in (first.scope, other.scope):
        refuse('one has scope "aggregate"', "its readers cannot be switched at one commit")
    if first.source != other.source:
        refuse(f"source is {first.source} and {other.source}", "only pipelines of one source are joined")
    if emit is None and first.emit is not other.emit:
        hint = "all views of a pipeline publish the same states; --emit transactions publishes every commit"
        refuse(f"emit is {first.emit} and {other.emit}", hint)
    kinds = dict.fromkeys(str(output.kind) for each in (first, other) for output in each.outputs)
    if len(kinds) > 1:
        hint = "readers can be switched between outputs of one kind"
        refuse(f"their outputs are of kind {' and '.join(kinds)}", hint)
    if SinkKind.OPENSEARCH in kinds:
        refuse("they have indexes", "readers of indexes are switched between revisions of one name")
    declared = {table.full_name: table for table in first.sql.catalog.tables} if first.sql else {}
    for table in other.sql.catalog.tables if other.sql else ():
        name = table.full_name
        if declared.get(name, table) != table:
            hint = "declare it in the same way in both: slackwater schema pull"
            refuse(f"table {name} is declared differently", hint)
        topics = sorted({each.source_topics.data(name) for each in (first, other)})
        if name in declared and len(topics) > 1:
            refuse(f"the topics of table {name} are {' and '.join(topics)}", "one of the two is wrong")


def _schema(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in (folder / "schema.sql", *sorted((folder / "schema").glob("*.sql"))):
        if path.exists():
            yield path, read_file(folder, path)


def _views(parts: Sequence[PipelineDefinition]) -> Mapping[str, str]:
    """Returns the text of each view, which is the same in all parts that have it."""
    found: dict[str, str] = {}
    for part in parts:
        for path, text in part.sql.views if part.sql else ():
            if found.setdefault(Path(path).stem, text) != text:
                problem = f"view {Path(path).stem!r} of {part.name} is another one than that of the others"
                raise ConfigError(problem, "rename one of them, or make both the same")
    return found


def _outputs(parts: Parts, revision: int) -> Mapping[str, Mapping[str, Any]]:
    """Returns what pipeline.toml says of each view; names of topics and tables are those of the revision."""
    found: dict[str, Mapping[str, Any]] = {}
    for folder, part in parts.items():
        said, views = read_definition(folder).values, part.sql.view_names if part.sql else ()
        several = said.get("outputs") or {view: said.get("output", {}) for view in views[:1]}
        for view in views:
            output = {**several.get(view, {})}
            if topic := output.pop("topic", None):  # a table of a source has the prefix of its pipeline
                is_source = output.get("format") == "debezium"
                output |= {} if is_source else {"topic": revision_name(_REVISION.sub("", topic), revision)}
            if "table" in output:
                output["table"] = f"{_REVISION.sub('', output['table'])}_v{revision}"
            if found.setdefault(view, output) != output:
                problem = f"the output of view {view!r} of {part.name} is another one than that of the others"
                raise ConfigError(problem, "make both the same, or rename one of the views")
    return found


def _toml(values: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for key, value in values.items():
        yield f"{key if _BARE_KEY.fullmatch(key) else json.dumps(key)} = {json.dumps(value)}"
    for name, table in tables.items():
        if table:
            yield f"\n[{name}]"
            yield from _toml(table, {})
