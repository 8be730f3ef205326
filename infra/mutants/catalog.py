"""What is planted: reviewed mutants from files, and drawn ones made from the syntax of modules."""

import ast
import random
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from infra.mutants.operators import changes
from infra.mutants.patterns import PatternError, changed, spliced

REVIEWED = Path(__file__).parent / "reviewed"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed module."""

    name: str
    """Which rule is broken; of a drawn mutant its place and what was changed."""
    file: str
    """From the root of the repository."""
    source: str
    """The changed text of the whole file."""
    lines: tuple[int, int]
    """The first and the last line of the original text that are changed."""

    @property
    def digest(self) -> str:
        """Identifies what the changed module does: imports, comments and docstrings do not count."""
        return sha256(ast.dump(_Essence().visit(ast.parse(self.source))).encode()).hexdigest()[:12]


class _Essence(ast.NodeTransformer):
    """Leaves out what changes when a module moves, or is described in other words."""

    def visit_Import(self, node: ast.Import) -> None:
        """Leaves it out."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Leaves it out."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        """Leaves texts out that nobody reads."""
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node


@dataclass(slots=True)
class Mechanism:
    """Modules with one purpose, the quick tests that have to notice faults in them, and the mutants."""

    name: str
    title: str
    tests: list[str]
    files: list[str]
    """Those from which mutants are drawn."""
    then: str
    """What judges a mutant that passes the quick tests: ``simulator``, ``differential`` or nothing."""
    lane: str = ""
    """The mark of tests that are not quick, but judge: ``integration`` for the SQL of a package."""
    mutants: list[Mutant] = field(default_factory=list)
    drifted: list[str] = field(default_factory=list)
    """What is wrong with reviewed mutants that do not fit the code any more."""


def reviewed(root: Path, name: str) -> Mechanism:
    """Reads a mechanism and its reviewed mutants.

    In its file, the table of a module has for each mutant
    ``"FUNCTION: CHANGE" = "the promise that it breaks"``; several changes are separated by `` ; ``, and
    :mod:`infra.mutants.patterns` says what a change is. With ``lane = "integration"``, its tests
    judge with real servers. A mutant has drifted if one of the changes does not fit the code, or no Python
    comes of it.
    """
    data = tomllib.loads((root / "infra/mutants/reviewed" / f"{name}.toml").read_text())
    mechanism = Mechanism(name, data["title"], data["tests"], data["files"], data.get("then", ""))
    mechanism.lane = data.get("lane", "")
    for file, changes_of in data.get("mutants", {}).items():
        path = next((f for f in mechanism.files if f.endswith("/" + file)), file)
        for address, breaks in changes_of.items():
            try:
                mechanism.mutants.append(_mutant(root, path, address, breaks))
            except (PatternError, SyntaxError) as error:
                mechanism.drifted.append(f"{breaks}: {path}: {error}")
    return mechanism


def _mutant(root: Path, path: str, address: str, breaks: str) -> Mutant:
    function, _, changes_of_it = address.partition(": ")
    text = (root / path).read_text()
    lines: list[int] = []
    for change in changes_of_it.split(" ; "):
        text, span = changed(text, function, change)
        lines += span
    ast.parse(text)
    return Mutant(breaks, path, text, (min(lines), max(lines)))


def drawn(root: Path, mechanism: Mechanism, count: int, seed: int) -> list[Mutant]:
    """Draws mutants from a mechanism's modules, the same for the same seed and code."""
    found = [m for file in mechanism.files for m in _generated(root, file)]
    chosen = random.Random(f"{mechanism.name} {seed}").sample(range(len(found)), min(count, len(found)))  # noqa: S311 - a draw
    return [found[i] for i in sorted(chosen)]


def _generated(root: Path, file: str) -> Iterator[Mutant]:
    text = (root / file).read_text()
    for node, what, new in changes(ast.parse(text)):
        source = spliced(text, node, new)
        try:
            ast.parse(source)
        except SyntaxError:
            continue
        name = f"{file}:{node.lineno}:{node.col_offset}: {what}"
        yield Mutant(name, file, source, (node.lineno, node.end_lineno or node.lineno))
