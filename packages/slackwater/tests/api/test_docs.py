"""docs/python.md shows the examples as they are."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[4] / "docs"


def test_every_example_stands_in_the_documentation_as_it_runs() -> None:
    """Those of pipelines; one that uses no Slackwater is only named there."""
    blocks = set(re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(), re.DOTALL))
    files = sorted((DOCS / "examples").glob("*.py"))
    examples = [path for path in files if "slackwater.api" in path.read_text()]
    assert len(examples) == 4
    for path in examples:
        assert path.read_text() in blocks, f"docs/python.md does not show {path.name} as it is"


def test_every_public_name_that_a_user_calls_is_documented() -> None:
    text = (DOCS / "python.md").read_text()
    names = [
        "changes",
        "for_each_commit_batch",
        "for_each_document_batch",
        "stateful",
        "write_view",
        "Pipeline",
    ]
    names += [
        "session_builder",
        "check_session",
        "missing_settings",
        "CommitBatch",
        "ViewBatch",
        "RunSettings",
    ]
    for name in names:
        assert f"{name}" in text, name
