"""How large the house is, and how large it may be: the ceilings are in ``budget.toml``."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CEILINGS = ROOT / "infra/budget/budget.toml"
LAYOUT = ROOT / "docs/design/0001-layout.md"
_BEGIN, _END = "<!-- budget: begin -->\n", "<!-- budget: end -->\n"
_CLASS = re.compile(r"^ *class (\w+)", re.MULTILINE)
_FOLDERS = ("packages", "sidecar", "benchmarks", "pipelines", "infra", "docs")
_GENERATED = re.compile(r"docs/(reference/(?!README)|performance\.md)")
"""Pages that are made from code and results."""

Size = Mapping[str, int]
"""Lines, modules, public classes and error classes of a room."""


@cache
def rooms() -> Mapping[str, Size]:
    """Returns the size of every room: a member, or a package of the product's one wheel."""
    found: dict[str, list[Path]] = {}
    for member in (*ROOT.glob("packages/*"), ROOT / "sidecar", ROOT / "benchmarks"):
        for path in (member / "src").rglob("*.py"):
            found.setdefault(_room(path), []).append(path)
    return {name: _size(found[name]) for name in sorted(found)}


@cache
def repository() -> Size:
    """Returns the size of all Python outside of tests: the rooms, probes, tools and examples, too."""
    paths = (path for folder in _FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return _size([path for path in paths if "tests" not in path.relative_to(ROOT).parts])


def _size(paths: Sequence[Path]) -> Size:
    texts = [path.read_text() for path in paths]
    names = [name for text in texts for name in _CLASS.findall(text)]
    return {
        "lines": sum(text.count("\n") for text in texts),
        "modules": len(texts),
        "classes": sum(not name.startswith("_") for name in names),
        "errors": sum(name.endswith("Error") for name in names),
    }


def documentation() -> Size:
    """Returns the pages, words and terms of the documentation that people write."""
    pages = [
        path for path in (ROOT / "docs").rglob("*.md") if not _GENERATED.match(str(path.relative_to(ROOT)))
    ]
    glossary = (ROOT / "docs/glossary.md").read_text()
    return {
        "pages": len(pages),
        "words": sum(len(path.read_text().split()) for path in pages),
        "terms": len(re.findall(r"^\| \*\*", glossary, re.MULTILINE)),
        "readme": len((ROOT / "README.md").read_text().split()),
    }


def ceilings() -> Mapping[str, Size]:
    """Returns what each room, ``repository`` and ``documentation`` may be at most."""
    return tomllib.loads(CEILINGS.read_text())


def excess() -> list[str]:
    """Returns a line for everything that is above its ceiling, or has none."""
    limits = ceilings()
    sizes = [*rooms().items(), ("repository", repository()), ("documentation", documentation())]
    return [
        f"{name}: {size[what]:,} {what}, at most {limit} are allowed"
        for name, size in sizes
        for what in size
        if (limit := limits.get(name, {}).get(what, 0)) < size[what]
    ]


def table() -> str:
    """Returns the table of the layout page."""
    return "\n".join(_rows()) + "\n"


def written(page: str) -> str:
    """Returns the layout page with the present table."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{table()}{_END}{after}"


def _rows() -> Iterator[str]:
    yield "| room | lines | modules | public classes | error classes |"
    yield "|---|---:|---:|---:|---:|"
    total = dict.fromkeys(("lines", "modules", "classes", "errors"), 0)
    for name, size in rooms().items():
        yield _row(f"`{name}`", size)
        if name not in ("slackwater_lab", "slackwater_bench"):
            total = {what: total[what] + size[what] for what in total}
    yield _row("**the product** (all but `slackwater_bench` and `slackwater_lab`)", total)
    yield _row("**the repository** (all Python outside of tests)", repository())


def _row(name: str, size: Size) -> str:
    return f"| {name} | {' | '.join(f'{value:,}' for value in size.values())} |"


def _room(path: Path) -> str:
    package, *inside = path.relative_to(next(each for each in path.parents if each.name == "src")).parts
    is_part = package == "slackwater" and len(inside) > 1
    return f"slackwater.{inside[0]}" if is_part else package
