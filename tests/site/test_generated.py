"""What the site takes from code is what the code says now, and the site needs nothing from elsewhere."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from infra.site.__main__ import committed, reference_files, write_changed
from infra.site.reference import command_pages, commands_page, functions_page, metrics_page, settings_page
from slackwater.cli.main import cli
from slackwater.protocol import metrics
from slackwater.settings.loading import setting_fields

ROOT = Path(__file__).parents[2]


def test_pages_are_what_the_code_says() -> None:
    stale = [path for path, text in committed().items() if not path.exists() or path.read_text() != text]
    assert stale == [], "run make docs, and commit what it writes"


def test_every_setting_is_in_the_reference_once() -> None:
    listed = re.findall(r"^\| `([\w.]+)`", settings_page(), re.MULTILINE)
    assert listed == [field.path for field in setting_fields()]


def test_every_metric_is_in_the_reference_once() -> None:
    listed = re.findall(r"^\| `(slackwater_\w+)`", metrics_page(), re.MULTILINE)
    known = (*metrics.SIDECAR_METRICS, *metrics.RUN_METRICS, *metrics.CONTROL_METRICS)
    assert listed == [metric.name for metric in known]


def test_no_default_in_the_reference_depends_on_this_machine() -> None:
    assert str(Path.home()) not in settings_page()
    assert str(ROOT) not in settings_page() + commands_page() + "".join(command_pages().values())


def test_every_command_is_in_the_reference() -> None:
    pages = command_pages()
    context = click.Context(cli)
    for name in cli.list_commands(context):
        page = pages[name]
        assert page.startswith(f"# slackwater {name}\n")
        command = cli.get_command(context, name)
        if isinstance(command, click.Group):
            for part in command.list_commands(context):
                assert f"\n## slackwater {name} {part}\n" in page


def test_functions_are_listed_as_a_view_may_call_them() -> None:
    page = functions_page()
    may, _, may_not = page.partition("## Functions that a view may not call")
    assert "| `upper` |" in may
    assert "| `string_agg` |" in may
    for name in ("now", "random", "unnest", "current_setting"):
        assert f"| `{name}` |" not in may
        assert f"`{name}`" in may_not


@pytest.mark.slow
def test_the_site_is_built_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    write_changed(reference_files())
    site = tmp_path / "site"
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "infra/site"]
    done = subprocess.run(
        [*build, "-d", str(tmp_path / "trees"), ".", str(site)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for page in site.glob("**/*.html"):
        loaded = re.findall(
            r"<(?:script|img|iframe)[^>]+src=\"([^\"]+)|<link[^>]+href=\"([^\"]+)", page.read_text()
        )
        assert [link for pair in loaded for link in pair if "//" in link] == [], page
    for style in site.glob("_static/**/*.css"):
        assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text()) == [], style
    index = json.loads(
        (site / "searchindex.js").read_text().removeprefix("Search.setIndex(").removesuffix(")")
    )
    assert [name for name in index["docnames"] if name.startswith(("CHANGELOG", "docs/design/"))] == []
    assert found_by_headings(index, "left", "join") == {"docs/views"}
    assert found_by_headings(index, "runbook") == {"docs/runbooks"}


def found_by_headings(index: dict[str, Any], *words: str) -> set[str]:
    """The pages that a search lists first: those whose headings have every word."""
    names, headings = index["docnames"], index["titleterms"]
    pages = [{names[number] for number in _numbers(headings.get(word, ()))} for word in words]
    return set.intersection(*pages)


def _numbers(found: int | list[int]) -> list[int]:
    return [found] if isinstance(found, int) else list(found)
