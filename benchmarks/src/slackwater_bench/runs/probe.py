"""Runs a probe to its end and reads the JSON it prints."""

import json
import subprocess
from typing import Any

from slackwater_bench.errors import RunFailedError
from slackwater_bench.subject import Subject

SECONDS = 300.0


def run_probe(subject: Subject, name: str, *arguments: object, seconds: float = SECONDS) -> Any:
    """What the probe found.

    Raises:
        RunFailedError: it failed (another commit may lack what the probe needs), or takes longer.
    """
    command = subject.probe(name, *map(str, arguments))
    what = f"probe {name} in the environment of {subject.label}"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise RunFailedError(what, f"did not end within {seconds:g} s") from None
    if done.returncode != 0:
        raise RunFailedError(what, f"exit code {done.returncode}:\n{done.stderr[-1500:]}")
    return json.loads(done.stdout.splitlines()[-1])
