"""Sphinx makes the site of this repository's documentation (docs/design/0042-documentation-site.md).

The source folder is the repository, so that a link is right both there and on the site. Nothing is loaded
from elsewhere: pages have no fonts, scripts or pictures but those that are built, and search works on files.
"""

import tomllib
from pathlib import Path
from typing import Any

from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
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
pygments_style = "friendly"
pygments_dark_style = "monokai"


class FolderNames(SphinxPostTransform):
    """Shows the name of a folder that is linked to; one with a README is a link to that."""

    default_priority = 8  # before MyST's, which knows no folders
    formats = ("html",)

    def run(self, **_: Any) -> None:
        """Called by Sphinx for each page."""
        for link in list(self.document.findall(pending_xref)):
            folder = (ROOT / self.env.docname).parent / str(link["reftarget"])
            if link["reftype"] != "myst" or not folder.is_dir():
                continue
            page = (folder / "README").resolve().relative_to(ROOT).as_posix()
            if page in self.env.all_docs:
                link["reftype"], link["refdomain"], link["reftarget"] = "doc", "std", f"/{page}"
            else:
                link.replace_self(link.children)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_post_transform(FolderNames)
