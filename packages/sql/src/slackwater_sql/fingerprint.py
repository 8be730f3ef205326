"""What kept state and published documents depend on, as one hash."""

import hashlib
import json
import re
from collections.abc import Iterable

from slackwater_sql.plan import InputPlan
from slackwater_sql.stages import StagePlan

FINGERPRINT_VERSION = 1
"""Raised when kept state or documents of an unchanged view would change."""

_WORD = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\w+|[^\w\s]", re.DOTALL)
_COMMENT = re.compile(r"('(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")|--[^\n]*|/\*.*?\*/", re.DOTALL)
_ID = re.compile(r'"[ck]\d+"')


def fingerprint(stages: Iterable[StagePlan]) -> str:
    """Differs when the meaning of stages, or of state kept for them, differs.

    Equal under changed spacing and comments, and under changes of columns and views that they do not use.
    """
    meaning = {"version": FINGERPRINT_VERSION, "stages": [_facts(stage) for stage in stages]}
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()


def _facts(stage: StagePlan) -> list[object]:
    facts: list[object] = []
    if stage.rows is not None:
        facts.append(_words(stage.rows.statement))
        facts += [
            _input(plan, origin) for plan, origin in zip(stage.rows.inputs, stage.rows.origins, strict=True)
        ]
    if stage.accumulate is not None:
        facts.append(_words(stage.accumulate.statement))
        facts += [[each.kind.value, each.scale, each.multiset] for each in stage.accumulate.accumulators]
    return facts


def _input(plan: InputPlan, origin: int) -> list[object]:
    """Columns of stages have made-up names."""
    types = [[str(column.type), column.nullable] for column in plan.columns]
    facts: list[object] = [plan.keeps_null_keys, types, plan.key_positions, plan.primary_key_positions]
    return facts if origin else [plan.table.full_name, plan.column_names, *facts]


def _words(statement: str) -> list[str]:
    """The words of a statement without spacing and comments, ids numbered as they come."""
    without_comments = _COMMENT.sub(lambda found: found.group(1) or " ", statement)
    ids: dict[str, str] = {}
    words = []
    for word in _WORD.findall(without_comments):
        if _ID.fullmatch(word):
            words.append(ids.setdefault(word, f"#{len(ids)}"))
        else:
            words.append(word if word[0] in "'\"" else word.lower())
    return words
