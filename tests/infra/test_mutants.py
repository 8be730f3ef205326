"""Reviewed mutants fit the code: what they change is there exactly once, and their tests exist."""

import subprocess
import sys
from pathlib import Path

import pytest

from infra.mutants.catalog import REVIEWED, reviewed
from infra.mutants.patterns import changed

ROOT = Path(__file__).parents[2]
MECHANISMS = sorted(path.stem for path in REVIEWED.glob("*.toml"))


@pytest.mark.full
@pytest.mark.parametrize("name", MECHANISMS)
def test_each_mutant_fits_exactly_one_place(name: str) -> None:
    mechanism = reviewed(ROOT, name)
    assert mechanism.drifted == []
    assert mechanism.mutants
    assert [path for path in (*mechanism.tests, *mechanism.files) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("def f():\n    b = 1", "fits 0 places"),
        ("def f():\n    a = 1\n    a = 1", "fits 2 places"),
        ("def g():\n    a = 1", "there is no f"),
    ],
)
def test_a_mutant_that_does_not_fit_is_named(tmp_path: Path, code: str, problem: str) -> None:
    (tmp_path / "infra/mutants/reviewed").mkdir(parents=True)
    (tmp_path / "infra/mutants/reviewed/x.toml").write_text(
        'title = "x"\ntests = []\nfiles = ["m.py"]\n[mutants."m.py"]\n"f: a = 1 => a = 2" = "a rule"\n'
    )
    (tmp_path / "m.py").write_text(code)
    mechanism = reviewed(tmp_path, "x")
    (found,) = mechanism.drifted
    assert found.startswith("a rule: m.py")
    assert problem in found
    assert mechanism.mutants == []


CODE = """
class A:
    def f(self, x):
        self.put(x, 1)
        if x > 2 and self.ok and not x:
            raise ValueError(x, "no")
        self.write("a AND b")
        return [y for y in x if y]
"""


@pytest.mark.parametrize(
    ("change", "old", "new"),
    [
        ("drop self.put(...)", "self.put(x, 1)", "pass"),
        (
            "drop if ...: ...",
            'if x > 2 and self.ok and not x:\n            raise ValueError(x, "no")',
            "pass",
        ),
        ("drop raise ValueError(...)", 'raise ValueError(x, "no")', "pass"),
        ("without self.ok", "x > 2 and self.ok and not x", "(x > 2 and (not x))"),
        ("without y", "[y for y in x if y]", "([y for y in x])"),
        ("without 1", "self.put(x, 1)", "(self.put(x))"),
        ("not x > ...", "x > 2", "(not (x > 2))"),
        ("x > 2 => x >= 2", "x > 2", "(x >= 2)"),
        ("x => 0 @2", "x > 2", "(0) > 2"),
        ("not x => False", "not x:", "(False):"),
        ("return ... => return None", "return [y for y in x if y]", "return None"),
        ("text AND => OR", '"a AND b"', "'a OR b'"),
        (
            "later self.write(...)",
            'self.write("a AND b")\n        return [y for y in x if y]',
            "return [y for y in x if y]\n        self.write('a AND b')",
        ),
    ],
)
def test_a_change_replaces_the_syntax_that_it_names(change: str, old: str, new: str) -> None:
    assert CODE.count(old) == 1
    text, _ = changed(CODE, "A.f", change)
    assert text == CODE.replace(old, new)


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
    module = "packages/slackwater/src/slackwater/pipeline/checkpoint.py"
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
