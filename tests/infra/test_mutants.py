"""Reviewed mutants fit the code: what they replace is there exactly once, and their tests exist."""

import subprocess
import sys
from pathlib import Path

import pytest

from infra.mutants.catalog import REVIEWED, reviewed

ROOT = Path(__file__).parents[2]
MECHANISMS = sorted(path.stem for path in REVIEWED.glob("*.toml"))


@pytest.mark.parametrize("name", MECHANISMS)
def test_each_mutant_replaces_a_text_that_is_there_exactly_once(name: str) -> None:
    mechanism = reviewed(ROOT, name)
    assert mechanism.drifted == []
    assert mechanism.mutants
    assert [path for path in (*mechanism.tests, *mechanism.files) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("b = 1", "old text 0 times"),
        ("a = 1\na = 1", "old text 2 times"),
        ("if a = 1", "becomes no Python"),
    ],
)
def test_a_mutant_that_does_not_fit_is_named(tmp_path: Path, code: str, problem: str) -> None:
    (tmp_path / "infra/mutants/reviewed").mkdir(parents=True)
    (tmp_path / "infra/mutants/reviewed/x.toml").write_text(
        'title = "x"\ntests = []\nfiles = ["m.py"]\n'
        '[[mutant]]\nbreaks = "a rule"\nfile = "m.py"\nold = "a = 1"\nnew = "a = 2"\n'
    )
    (tmp_path / "m.py").write_text(code)
    mechanism = reviewed(tmp_path, "x")
    (found,) = mechanism.drifted
    assert found.startswith("a rule: m.py")
    assert problem in found
    assert mechanism.mutants == []


JUDGE = """
import sys
from pathlib import Path
from infra.mutants import trial
from infra.mutants.catalog import Mechanism, Mutant

file, test, logs = sys.argv[1:]
text = Path(file).read_text()
line = "def s3_address"
mutant = Mutant("all", file, text.replace(line, "raise SystemError\\n\\n\\n" + line), (1, 1))
mechanism = Mechanism("x", "x", [test], [file], "")
trial.load_libraries()
quick = trial.look(Path.cwd(), mechanism, Path(logs), trial.NO_LIMIT)
sys.stdout.write(f"judged: {trial.judge(Path.cwd(), mechanism, quick, mutant, Path(logs)).caught_by}\\n")
"""


def test_a_mutant_is_planted_in_a_package_that_pytest_loads_for_its_plugin(tmp_path: Path) -> None:
    module = "packages/slackwater/src/slackwater/pipeline/s3a.py"
    tests = "packages/slackwater/tests/pipeline/test_s3a.py"
    judged = subprocess.run(
        (sys.executable, "-c", JUDGE, module, tests, str(tmp_path)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert "judged: tests" in judged.stdout
