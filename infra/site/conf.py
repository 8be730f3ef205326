"""Sphinx makes the site of this repository's documentation (docs/design/0013-operation.md).

The source folder is the repository, so that a link is right both there and on the site. Nothing is loaded
from elsewhere: pages have no fonts, scripts or pictures but those that are built, and search works on files.
"""

import tomllib
from pathlib import Path
from typing import Any

from docutils.nodes import document, inline
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.transforms.post_transforms import SphinxPostTransform

ROOT = Path(__file__).parents[2]

project = "Slackwater"
author = "The authors of Slackwater"
release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
language = "en"

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 6
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/**.md",
    "packages/**README.md",
    "sidecar/README.md",
    "benchmarks/README.md",
    "pipelines/**README.md",
]
exclude_patterns = [".*", "site"]
suppress_warnings = ["toc.not_included", "misc.highlighting_failure"]

html_theme = "furo"
html_title = f"Slackwater {release}"
html_extra_path = ["start"]
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "friendly"
pygments_dark_style = "monokai"


NOT_FOUND = ("CHANGELOG", "docs/design/")
"""The search leaves these pages out: they say why and since when, not how."""


class SiteBuilder(StandaloneHTMLBuilder):
    """Builds the pages, and the index of those that the search finds."""

    def index_page(self, pagename: str, doctree: document, title: str) -> None:
        """Called by Sphinx for each page."""
        if not pagename.startswith(NOT_FOUND):
            super().index_page(pagename, doctree, title)


class RepositoryLinks(SphinxPostTransform):
    """Shows links of the repository as readers of a site expect them.

    A folder becomes a link to its README, or a name if it has none; a page that is linked to by the name of
    its file is shown by its title.
    """

    default_priority = 8  # before MyST's, which knows no folders
    formats = ("html",)

    def run(self, **_: Any) -> None:
        """Called by Sphinx for each page."""
        for link in list(self.document.findall(pending_xref)):
            target = str(link["reftarget"])
            if link["reftype"] == "myst" and ((ROOT / self.env.docname).parent / target).is_dir():
                self._show_folder(link, target)
            elif link.get("refdomain") == "doc" and _is_path(link.astext(), target):
                title = self.env.titles[target.lstrip("/")]
                shown = inline("", "", *(child.deepcopy() for child in title.children))
                link.children = []
                link += shown

    def _show_folder(self, link: pending_xref, target: str) -> None:
        folder = (ROOT / self.env.docname).parent / target
        page = (folder / "README").resolve().relative_to(ROOT).as_posix()
        if page in self.env.all_docs:
            link["reftype"], link["refdomain"], link["reftarget"] = "doc", "std", f"/{page}"
        else:
            link.replace_self(link.children)


def _is_path(shown: str, page: str) -> bool:
    """The text of a link is the end of the path of the page's file."""
    return shown.endswith(".md") and f"/{page.lstrip('/')}.md".endswith(f"/{shown}")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_post_transform(RepositoryLinks)
    app.add_builder(SiteBuilder, override=True)
