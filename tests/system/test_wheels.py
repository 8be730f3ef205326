"""Each member's wheel, installed into an environment that holds nothing else, and used there.

The repository's own environment has all members and all their extras, so it hides what one of them forgets to
ask for. How it was seen to fail: a dependency taken out of a member's pyproject.toml.
"""

import json
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from slackwater.cli.main import EXTRAS
from slackwater.dev import KafkaBroker, RedisServer
from slackwater.dev.server import free_port
from slackwater.protocol import KafkaSettings, Servers
from slackwater_lab.conformance.case import parse
from slackwater_lab.conformance.replay import replayed
from slackwater_lab.publishing import publishing_pipeline

pytestmark = pytest.mark.integration

SECONDS = 300.0
Ran = Callable[..., str]
Install = Callable[[str], Path]
ROOT = Path(__file__).parents[2]
OWN_PIPELINE = ROOT / "docs" / "certify-your-own.md"
RECORDED = ROOT / "packages" / "certify" / "tests" / "recorded" / "flink.jsonl"
OTHERS = ("slackwater", "slackwater-messaging")
IMPORT_ALL = """
import importlib, json, pkgutil, sys
package = importlib.import_module(sys.argv[1])
missing = {}
for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        missing[module.name] = error.name
print(json.dumps(missing))
"""
READ = """

import sys
from slackwater.client import TopicOutput, read_views
from slackwater.protocol import KafkaSettings
output = TopicOutput(KafkaSettings(sys.argv[1]), sys.argv[2])
for documents in read_views([output]).documents.values():
    for document in documents:
        print(document.decode())
output.close()
"""
DISTRIBUTIONS = "from importlib.metadata import distributions as d; print(*(each.name for each in d()))"
EXTRA_MODULES = {*EXTRAS, "asyncpg", "sqlalchemy", "fastavro", "hypothesis"}
"""What extras bring; whatever else is missing is a dependency that a member forgot."""


def missing_modules(ran: Ran, commands: Path, member: str) -> dict[str, str]:
    """The modules of a member that cannot be imported, each with the module that is missing."""
    found: dict[str, str] = json.loads(ran(commands / "python", "-c", IMPORT_ALL, member.replace("-", "_")))
    return {name: what.partition(".")[0] for name, what in found.items()}


def check_imports(ran: Ran, commands: Path, member: str) -> None:
    """Imports every module of a member, and looks whether any is missing that no extra brings."""
    missing = missing_modules(ran, commands, member)
    assert {name: what for name, what in missing.items() if what not in EXTRA_MODULES} == {}


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["dev", "hdfs", "lake", "postgres", "spark", "telemetry"])
def test_an_extra_brings_all_that_is_said_to_come_with_it(extra: str, install: Install, ran: Ran) -> None:
    commands = install(f"slackwater[{extra}]")
    brought = {module for module, words in EXTRAS.items() if words == f"slackwater[{extra}]"}
    missing = missing_modules(ran, commands, "slackwater")
    assert {name: what for name, what in missing.items() if what not in EXTRA_MODULES - brought} == {}


@pytest.mark.slow
@pytest.mark.parametrize("member", OTHERS)
def test_a_member_has_all_that_it_imports(member: str, install: Install, ran: Ran) -> None:
    commands = install(member)
    check_imports(ran, commands, member)
    assert ran(
        commands / "python", "-c", f"import {member.replace('-', '_')} as m; print(m.__version__)"
    ).strip()
    if member == "slackwater":
        assert "run       " in ran(commands / "slackwater", "--help")
        assert ran(commands / "slackwater", "topology", "--help")


def test_the_wheel_of_the_command_has_what_spark_submit_starts(wheels: Path) -> None:
    [wheel] = wheels.glob("slackwater-[0-9]*.whl")
    with zipfile.ZipFile(wheel) as files:
        [script] = [name for name in files.namelist() if name.endswith("/scripts/slackwater-run.py")]
        assert files.read(script).startswith(b"#!python\n"), "installers write the environment's Python there"


@pytest.mark.full
def test_a_service_reads_views_with_the_client_alone(
    kafka_broker: KafkaBroker, install: Install, ran: Ran, tmp_path: Path
) -> None:
    commands = install("slackwater")
    check_imports(ran, commands, "slackwater")
    servers = Servers(kafka=KafkaSettings(kafka_broker.bootstrap))
    output = 'topic = "wheels"\npartitions = 2'
    with publishing_pipeline(tmp_path / "wheels", view="one", output=output, servers=servers) as pipeline:
        pipeline.publish({1: 10, 2: 20})
    read = ran(commands / "python", "-c", READ, kafka_broker.bootstrap, "wheels").splitlines()
    assert sorted(json.loads(line)["value"] for line in read) == [10, 20]
    assert "pyspark" not in ran(commands / "python", "-c", DISTRIBUTIONS)


@pytest.mark.slow
def test_a_team_writes_and_tests_a_pipeline_without_this_repository(
    install: Install, ran: Ran, tmp_path: Path
) -> None:
    commands = install("slackwater[spark]")
    folder = tmp_path / "revenue"
    assert "slackwater test" in ran(commands / "slackwater", "new", folder)
    assert "2 passed, 0 failed" in ran(commands / "slackwater", "test", folder)
    assert "stage 1" in ran(commands / "slackwater", "explain", folder)
    view = folder / "views" / "revenue.sql"
    view.write_text(view.read_text().replace("sum(", "max("))
    wrong = subprocess.run(
        [commands / "slackwater", "test", folder], cwd="/", capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr


@pytest.mark.full
def test_the_certifier_alone_judges_what_flink_has_written(
    kafka_broker: KafkaBroker, install: Install, ran: Ran, tmp_path: Path
) -> None:
    commands, prefix, text = install("slackwater-certify"), f"{tmp_path.name}.", OWN_PIPELINE.read_text()
    check_imports(ran, commands, "slackwater-certify")
    (specification,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    given = specification.replace('"documents.', f'"{prefix}documents.').replace('"inv"', f'"{prefix}inv"')
    (tmp_path / "certify.toml").write_text(given)
    shutil.copy(ROOT / "pipelines" / "orders" / "schema.sql", tmp_path)
    shutil.copy(ROOT / "benchmarks" / "peers" / "documents.sql", tmp_path / "view.sql")
    servers = ("--bootstrap", kafka_broker.bootstrap)
    with replayed(parse("flink", RECORDED.read_text()).renamed(prefix), kafka_broker.bootstrap):
        command = (commands / "slackwater-certify", tmp_path, *servers, "--mode", "both")
        judged = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert judged.returncode == 1, judged.stdout + judged.stderr
    found = dict(re.findall(r"^(.{18}) (\S+)", judged.stdout, re.MULTILINE))
    assert int(found["torn".ljust(18)]) > 0
    assert "final state        0 of" in judged.stdout
    assert "is not a committed state of it" in judged.stdout


@pytest.mark.full
def test_a_sidecar_runs_without_the_rest_of_the_command(
    kafka_broker: KafkaBroker, redis_server: RedisServer, install: Install, ran: Ran, tmp_path: Path
) -> None:
    commands = install("slackwater-sidecar")
    check_imports(ran, commands, "slackwater-sidecar")
    port = free_port()
    log = (tmp_path / "sidecar.log").open("w")
    servers = ("--bootstrap", kafka_broker.bootstrap, "--redis-url", redis_server.url)
    options = ("--source", "wheels", *servers, "--http", f"127.0.0.1:{port}")
    sidecar = subprocess.Popen(
        [commands / "slackwater-sidecar", *options], cwd=tmp_path, stdout=log, stderr=log
    )
    try:
        while not answers(port):
            assert sidecar.poll() is None, (tmp_path / "sidecar.log").read_text()
    finally:
        sidecar.send_signal(signal.SIGTERM)
        code = sidecar.wait(SECONDS)
        log.close()
    assert code == 0, (tmp_path / "sidecar.log").read_text()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError):
        return False
