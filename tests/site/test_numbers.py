"""The numbers of the sizing page are measured ones."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| [\w ]+ \| .+ \| ([\d.,]+) \| \[([\w-]+)\]\(\.\./performance\.md#[\w-]+\) \|$", re.M)


def sections() -> dict[str, str]:
    """The sections of docs/performance.md, which is made from the results, by heading."""
    _, *parts = re.split(r"^## (.+)$", (DOCS / "performance.md").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_each_value_of_the_capacity_table_stands_in_the_results_that_it_names() -> None:
    rows = ROW.findall((DOCS / "operations" / "sizing.md").read_text())
    assert len(rows) == 15
    cells = {name: re.split(r"[|*\s]+", text) for name, text in sections().items()}
    assert [(value, name) for value, name in rows if value not in cells[name]] == []
