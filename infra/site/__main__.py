"""``python -m infra.site``: writes the pages that are made from code."""

import sys
from collections.abc import Mapping
from pathlib import Path

from infra.site import observability, reference


def main() -> None:
    """Writes the pages that differ."""
    write_changed({**committed(), **reference_files()})


def write_changed(texts: Mapping[Path, str]) -> None:
    """Writes the files whose text differs, and says which."""
    for path, text in texts.items():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            sys.stderr.write(f"written: {path}\n")


def committed() -> dict[Path, str]:
    """Returns the text of every committed file that is made from code."""
    return {observability.PAGE: observability.page_with_tables()}


def reference_files() -> dict[Path, str]:
    """Returns the text of every reference page, which only the site has."""
    return {reference.FOLDER / name: text for name, text in reference.reference_pages().items()}


if __name__ == "__main__":
    main()
