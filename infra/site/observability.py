"""The tables of docs/observability.md: the alert rules, and the fields of a log's records."""

from pathlib import Path
from typing import Any, Final

import yaml

from slackwater.protocol.log_fields import FIELDS

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "infra" / "dashboards"
PAGE: Final = ROOT / "docs" / "observability.md"


def alert_rules() -> list[dict[str, Any]]:
    """Returns the rules of infra/dashboards/alerts.yaml as Prometheus reads them."""
    rules: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
    return rules


def page_with_tables() -> str:
    """Returns the page with its tables as they are now, each between two comments of its name."""
    text = PAGE.read_text()
    for name, table in (("alerts", _alerts_table()), ("log fields", _log_fields_table())):
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{table}{end}{rest.partition(end)[2]}"
    return text


def _alerts_table() -> str:
    lines = ["| alert | when | for | severity | runbook |", "|---|---|---:|---|---|"]
    for rule in alert_rules():
        when = rule["expr"].replace("|", "\\|")
        page = rule["annotations"]["runbook"].removeprefix("docs/")
        link = f"[{page.partition('#')[2]}]({page})"
        lines.append(
            f"| {rule['alert']} | `{when}` | {rule['for']} | {rule['labels']['severity']} | {link} |"
        )
    return "\n".join(lines)


def _log_fields_table() -> str:
    lines = [f"| `{name}` | {meaning} |" for name, meaning in FIELDS.items()]
    return "\n".join(["| field | meaning |", "|---|---|", *lines])
