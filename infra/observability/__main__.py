"""``python -m infra.observability``: writes the dashboards and the alert rules into infra/dashboards/."""

import json
import re
import sys
from pathlib import Path
from typing import Final

import yaml

from infra.observability.alerts import alerts_table, rule_file
from infra.observability.dashboards import DASHBOARDS

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "infra" / "dashboards"
PAGE: Final = ROOT / "docs" / "observability.md"
_TABLE: Final = re.compile(r"(<!-- alerts -->\n).*?(\n<!-- end of alerts -->)", re.DOTALL)


def main() -> None:
    """Writes what differs, and says so."""
    for path, text in generated().items():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            sys.stderr.write(f"written: {path}\n")


def generated() -> dict[Path, str]:
    """Returns the text of every file that is made from code."""
    texts = {
        FOLDER / f"{name}.json": json.dumps(dashboard.to_json(), indent=2) + "\n"
        for name, dashboard in DASHBOARDS.items()
    }
    texts[FOLDER / "alerts.yaml"] = yaml.safe_dump(rule_file(), sort_keys=False, width=110)
    texts[PAGE] = _TABLE.sub(lambda found: f"{found[1]}{alerts_table()}{found[2]}", PAGE.read_text())
    return texts


if __name__ == "__main__":
    main()
