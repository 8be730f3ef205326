"""Runs a case through an engine and compares every state with the reference."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import duckdb

from slackwater_lab.differential.case import Batch, Case, Feature
from slackwater_lab.differential.engines import ChangedDocument, Engine, MakeEngine, RefusedViewError
from slackwater_lab.differential.history import DrawnCommit, play
from slackwater_lab.differential.reference import Reference, Rows, of_document


class Verdict(StrEnum):
    """The ways in which the check of a case ends."""

    RIGHT = "right"
    WRONG = "wrong"
    """Other rows than the reference's."""
    NEEDLESS = "needless"
    """Two documents of a key in one commit, a delete of a key that is not there, or a commit of no batch."""
    CRASHED = "crashed"
    REFUSED = "refused"
    """By the engine's planner."""
    IMPOSSIBLE = "impossible"
    """The reference itself cannot do it: the generator's mistake."""

    @property
    def is_failure(self) -> bool:
        """The engine is to blame."""
        return self in {Verdict.WRONG, Verdict.NEEDLESS, Verdict.CRASHED}


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of the check of a case.

    Attributes:
        case: The case, with replica identities as the engine asked for them.
        verdict: What came of it.
        problem: What is wrong, in words.
        view: Number of the view that is wrong.
        lsn: Commit LSN of the first wrong state.
        expected: The reference's rows there.
        got: The engine's rows there.
        counts: States of views and rows that were compared; repeated documents, which said what was known.
            They are allowed: a row whose place in a stage changes may be written again by another bucket,
            which does not know the document.
    """

    case: Case
    verdict: Verdict
    problem: str = ""
    view: int = -1
    lsn: int = 0
    expected: tuple[str, ...] = ()
    got: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_failure(self) -> bool:
        """True if the engine is to blame."""
        return self.verdict.is_failure


class _FoundError(Exception):
    def __init__(self, checked: Checked) -> None:
        super().__init__(checked)
        self.checked = checked


def check(case: Case, make_engine: MakeEngine) -> Checked:
    """Runs a case; whatever the engine raises is a result, too.

    Raises:
        RuntimeError: A signal came within a query, such as that of a time limit: nothing is known.
    """
    if Feature.PARTIAL_IDENTITY in case.features:
        checked = _check(case, make_engine)
        if checked.verdict is not Verdict.REFUSED or "REPLICA IDENTITY" not in checked.problem:
            return checked
        tables = tuple(replace(table, is_full=True) for table in case.tables)
        case = replace(case, tables=tables, features=case.features - {Feature.PARTIAL_IDENTITY})
    return _check(case, make_engine)


def _check(case: Case, make_engine: MakeEngine) -> Checked:
    try:
        reference = Reference(case.tables, case.views)
    except duckdb.Error as error:
        return Checked(case, Verdict.IMPOSSIBLE, str(error))
    with reference:
        try:
            engine = make_engine(case)
        except RefusedViewError as error:
            return Checked(case, Verdict.REFUSED, error.reason)
        except Exception as error:
            if _is_interruption(error):
                raise
            return Checked(case, Verdict.CRASHED, _in_words(error))
        try:
            return _Comparison(case, reference, engine).run()
        finally:
            engine.close()


class _Comparison:
    def __init__(self, case: Case, reference: Reference, engine: Engine) -> None:
        self._case = case
        self._reference = reference
        self._engine = engine
        self._documents: list[dict[bytes, str]] = [{} for _ in case.views]
        self._states = self._rows = self._repeats = 0

    def run(self) -> Checked:
        try:
            for batch, commits in batches_of(self._case, play(self._case.tables, self._case.transactions)):
                self._batch(batch, commits)
        except _FoundError as found:
            return found.checked
        except duckdb.Error as error:
            return Checked(self._case, Verdict.IMPOSSIBLE, str(error))
        return self._result(Verdict.RIGHT)

    def _batch(self, batch: Batch, commits: Sequence[DrawnCommit]) -> None:
        events = [change.event() for commit in commits for change in commit.changes]
        try:
            documents = list(self._engine.run(events, batch, commits[0].lsn))
        except Exception as error:
            if _is_interruption(error):
                raise
            raise _FoundError(self._result(Verdict.CRASHED, _in_words(error), lsn=commits[-1].lsn)) from error
        if not self._case.every_commit:
            for commit in commits:
                self._reference.apply(commit)
            self._publish(documents, commits[-1].lsn)
            self._compare(commits[-1].lsn)
            return
        for commit in commits:
            self._reference.apply(commit)
            self._publish([d for d in documents if d.lsn == commit.lsn], commit.lsn)
            self._compare(commit.lsn)
        known = {commit.lsn for commit in commits}
        for document in documents:
            if document.lsn not in known:
                problem = f"a document of commit {document.lsn}, which is not in the batch: {document}"
                raise _FoundError(self._result(Verdict.NEEDLESS, problem, document.view, commits[-1].lsn))

    def _publish(self, documents: Sequence[ChangedDocument], lsn: int) -> None:
        seen: set[tuple[int, bytes]] = set()
        for changed in documents:
            before = self._documents[changed.view].get(changed.key)
            after = None if changed.document is None else of_document(changed.document)
            is_twice = (changed.view, changed.key) in seen
            seen.add((changed.view, changed.key))
            self._repeats += before == after
            if is_twice or before is after is None:
                key = changed.key.decode()
                what = f"{key} is published twice" if is_twice else f"{key} was not there"
                problem = f"{what}: {after or 'deleted'}"
                raise _FoundError(self._result(Verdict.NEEDLESS, problem, changed.view, lsn))
            if after is None:
                del self._documents[changed.view][changed.key]
            else:
                self._documents[changed.view][changed.key] = after

    def _compare(self, lsn: int) -> None:
        for view, expected in enumerate(self._reference.rows()):
            got = Counter(self._documents[view].values())
            self._states += 1
            self._rows += expected.total()
            if got != expected:
                problem = _difference(expected, got)
                checked = self._result(Verdict.WRONG, problem, view, lsn)
                raise _FoundError(replace(checked, expected=_sorted(expected), got=_sorted(got)))

    def _result(self, verdict: Verdict, problem: str = "", view: int = -1, lsn: int = 0) -> Checked:
        checked = Checked(self._case, verdict, problem, view, lsn)
        counts = {"states": self._states, "rows": self._rows, "repeated documents": self._repeats}
        return replace(checked, counts=counts)


def batches_of(case: Case, commits: Sequence[DrawnCommit]) -> Iterator[tuple[Batch, Sequence[DrawnCommit]]]:
    """The commits of each batch; what no batch takes is one more."""
    start = 0
    for batch in case.batches:
        part = commits[start : start + batch.size]
        start += batch.size
        if part:
            yield batch, part
    if start < len(commits):
        yield Batch(len(commits) - start), commits[start:]


def _sorted(rows: Rows) -> tuple[str, ...]:
    return tuple(sorted(rows.elements()))


def _difference(expected: Rows, got: Rows) -> str:
    return f"{(expected - got).total()} rows missing, {(got - expected).total()} rows too many"


def _is_interruption(error: Exception) -> bool:
    """Says whether DuckDB gave up a query because of a signal; it replaces what the signal raised."""
    return isinstance(error, RuntimeError) and str(error) == "Query interrupted"


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
