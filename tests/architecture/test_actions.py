"""Actions of CI are named by their commits: a tag can be moved to other code."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
USED = re.compile(r"^[ -]*uses:\s*[\"']?([\w.-]+/[\w./-]+@.*)$", re.MULTILINE)
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}[\"']?\s+#\s*v\d+\.\d+\.\d+")


def used_actions() -> list[str]:
    """Those of all files of the repository, templates among them."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    files = [ROOT / name for name in names if name and (ROOT / name).is_file()]
    return [found for file in files for found in USED.findall(file.read_text(errors="ignore"))]


def test_every_action_is_named_by_its_commit_with_the_version_as_a_comment() -> None:
    found = used_actions()
    assert {"actions/checkout", "actions/setup-python"} <= {each.partition("@")[0] for each in found}
    assert [each for each in found if not PINNED.fullmatch(each.strip())] == []


def test_a_tag_is_not_taken_for_a_commit() -> None:
    commit = "0123456789" * 4
    assert PINNED.fullmatch(f"actions/checkout@{commit}  # v7.0.1")
    for wrong in (
        "actions/checkout@v7",
        f"actions/checkout@{commit}",
        f"actions/checkout@{commit[1:]} # v7.0.1",
    ):
        assert USED.findall(f"      - uses: {wrong}\n") == [wrong]
        assert not PINNED.fullmatch(wrong)
