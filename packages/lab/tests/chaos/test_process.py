"""The product's command in a world that can be made bad, in processes of its own."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from slackwater_lab.chaos.process import ControlFolder

LOOK = """
import sys
from pathlib import Path
from slackwater_lab.chaos.process import ControlFolder, prepare
prepare(ControlFolder(Path(sys.argv[1])), sys.argv[2:])
from slackwater.protocol import SystemClock
from slackwater.pipeline.runner import run_pipeline
from slackwater.outputs import sink
print(SystemClock().now().timestamp())
print(type(run_pipeline.keywords["probe"]).__name__)
print(sink.is_covered("p", 1, None, None) if sys.argv[2:] else "checked")
"""


@pytest.fixture
def control(tmp_path: Path) -> ControlFolder:
    return ControlFolder(tmp_path / "control")


def output(*arguments: str) -> list[str]:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_command_is_the_product_s(control: ControlFolder) -> None:
    module = ["-m", "slackwater_lab.chaos.process", str(control.path)]
    assert output(*module, "--without", "progress-check", "--version") == output(
        "-m", "slackwater", "--version"
    )


def test_clock_and_probe_obey_the_control_folder(control: ControlFolder) -> None:
    right = float(output("-c", LOOK, str(control.path))[0])
    control.move_clock(timedelta(hours=-7))
    moved, probe, check = output("-c", LOOK, str(control.path))
    assert 6.9 * 3600 < right - float(moved) < 7 * 3600
    assert (probe, check) == ("KillProbe", "checked")


def test_a_mechanism_can_be_switched_off(control: ControlFolder) -> None:
    assert output("-c", LOOK, str(control.path), "progress-check")[-1] == "False"
