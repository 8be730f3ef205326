"""``python -m infra.site``: writes the pages and pictures that are made from code."""

import sys
from collections.abc import Mapping
from pathlib import Path

from infra.site import observability, pictures, reference


def main() -> None:
    """Writes the pages and pictures that differ."""
    write_changed(generated())


def write_changed(texts: Mapping[Path, str]) -> None:
    """Writes the files whose text differs, and says which."""
    for path, text in texts.items():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            sys.stderr.write(f"written: {path}\n")


def generated() -> dict[Path, str]:
    """Returns the text of every file that is made from code."""
    pages = {reference.FOLDER / name: text for name, text in reference.reference_pages().items()}
    pages[observability.PAGE] = observability.page_with_tables()
    return pages | {pictures.FOLDER / name: text for name, text in pictures.pictures().items()}


if __name__ == "__main__":
    main()
