"""What dashboards are made of: rows of panels, each with its queries. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_WIDTH: Final = 24
"""Columns of Grafana's grid."""
_HEIGHT: Final = 8
_SCHEMA: Final = 39
"""The version of the format; Grafana 10 and later read it."""
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """A question to Prometheus."""

    expression: str
    legend: str
    """With labels as ``{{label}}``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A picture of the answers to some questions."""

    title: str
    description: str
    """What it shows, and when to worry."""
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    """Or ``stat``."""
    is_stacked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A choice at the top of a dashboard: values of a label of a metric."""

    label: str
    metric: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A page of panels."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[tuple[Panel, ...], ...]

    @property
    def queries(self) -> list[str]:
        """All expressions of it."""
        return [query.expression for row in self.rows for panel in row for query in panel.queries]

    def to_json(self) -> dict[str, Any]:
        """Returns the dashboard as Grafana imports it."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["slackwater"],
            "schemaVersion": _SCHEMA,
            "editable": True,
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": [_DATASOURCE_CHOICE, *map(_variable, self.variables)]},
            "panels": _placed(self.rows),
        }


_DATASOURCE_CHOICE: Final = {"name": "datasource", "type": "datasource", "query": "prometheus"}


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": f"label_values({variable.metric}, {variable.label})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "sort": 1,
    }


def _placed(rows: Sequence[Sequence[Panel]]) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        width = _WIDTH // len(row)
        for place, panel in enumerate(row):
            position = {"x": place * width, "y": number * _HEIGHT, "w": width, "h": _HEIGHT}
            panels.append(_panel(len(panels) + 1, panel, position))
    return panels


def _panel(number: int, panel: Panel, position: Mapping[str, int]) -> dict[str, Any]:
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 30} if panel.is_stacked else {"fillOpacity": 5}
    defaults = {"unit": panel.unit, "min": 0} | ({} if panel.kind == "stat" else {"custom": custom})
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": dict(position),
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + letter),
                "datasource": DATASOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for letter, query in enumerate(panel.queries)
        ],
    }
