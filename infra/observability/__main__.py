"""``python -m infra.observability``: writes the alert rules and the tables of docs/observability.md."""

from pathlib import Path
from typing import Final

import yaml

from infra.observability.alerts import alerts_table, rule_file
from infra.site.__main__ import write_changed
from slackwater.protocol.log_fields import FIELDS

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "infra" / "dashboards"
PAGE: Final = ROOT / "docs" / "observability.md"


def main() -> None:
    """Writes the files that differ."""
    write_changed(generated())


def generated() -> dict[Path, str]:
    """Returns the text of every file that is made from code."""
    rules = yaml.safe_dump(rule_file(), sort_keys=False, width=110)
    return {FOLDER / "alerts.yaml": rules, PAGE: _page(PAGE.read_text())}


def _page(text: str) -> str:
    for name, table in _TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{table()}{end}{rest.partition(end)[2]}"
    return text


def log_fields_table() -> str:
    """Returns the fields of a log's records as a table of the documentation."""
    lines = [f"| `{name}` | {meaning} |" for name, meaning in FIELDS.items()]
    return "\n".join(["| field | meaning |", "|---|---|", *lines])


_TABLES: Final = {"alerts": alerts_table, "log fields": log_fields_table}
"""What stands in the page between two comments of these names."""

if __name__ == "__main__":
    main()
