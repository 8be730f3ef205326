"""Every link and anchor of the documentation leads somewhere, and every page is in the navigation.

The same is checked by `make docs`; this is the part that takes no site.
"""

import re
import subprocess
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*([^()\s]+(?:\([^()\s]*\))?)\s*\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.split() if (ROOT / name).exists()]


def prose(text: str) -> str:
    """The text without its code blocks."""
    return _FENCE.sub("", text)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as Git hosts and the site make them."""
    found: dict[str, int] = {}
    names = set()
    for heading in _HEADING.findall(prose(page.read_text())):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        slug = "".join(
            "-" if each == " " else each
            for each in shown.lower()
            if each in " -_" or unicodedata.category(each)[0] in "LN"
        )
        count = found.get(slug, 0)
        found[slug] = count + 1
        names.add(f"{slug}-{count}" if count else slug)
    return frozenset(names)


def links(text: str) -> Iterator[str]:
    for target in _LINK.findall(_CODE.sub("code", prose(text))):
        if not re.match(r"[a-z][a-z+.-]*:", target):
            yield target


def broken(page: Path, text: str) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for target in links(text):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and (file.suffix != ".md" or anchor not in anchors(file))):
            found.append(target)
    return found


def navigation(page: Path) -> Iterator[Path]:
    """The pages below one in the navigation."""
    for tree in _TOCTREE.findall(page.read_text()):
        for line in tree.splitlines():
            if not line.strip() or line.startswith(":"):
                continue
            named = re.search(r"<(.+)>$", line)
            target = named.group(1) if named else line.strip()
            base = ROOT if target.startswith("/") else page.parent
            found = (
                [path.resolve() for path in base.glob(f"{target.lstrip('/')}.md") if path.resolve() != page]
                if "*" in target
                else [(base / f"{target.lstrip('/')}.md").resolve()]
            )
            for each in found:
                yield each
                if each.exists():
                    yield from navigation(each)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page, page.read_text()) == []


@pytest.mark.parametrize(
    "link",
    [
        "[x](nowhere.md)",
        "[x](views.md#nothing)",
        "![x](images/none.svg)",
        "[`x` [y]](nowhere.md)",
        "[x](#no)",
    ],
)
def test_a_broken_link_is_found(link: str) -> None:
    page = ROOT / "docs" / "guarantees.md"
    assert broken(page, f"# Title\n\nSee {link}.\n\n```\n[in code](nowhere.md)\n```\n") != []
    assert broken(page, f"# Title\n\n`{link}` and [views](views.md#what-a-view-may-be)\n") == []


def test_every_page_of_the_documentation_is_in_the_navigation_once() -> None:
    listed = list(navigation(ROOT / "docs" / "index.md"))
    assert [path for path in listed if not path.exists()] == []
    assert len(listed) == len(set(listed))
    documentation = {page for page in pages() if page.is_relative_to(ROOT / "docs")}
    assert documentation - set(listed) == {ROOT / "docs" / "index.md"}
