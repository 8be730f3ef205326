import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from slackwater.pipeline.worker_daemon import without_archives


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder of packages with PySpark."""
    (tmp_path / "packages" / "pyspark" / "python" / "lib").mkdir(parents=True)
    return tmp_path / "packages"


def test_archives_of_the_installed_pyspark_are_left_out(installed: Path) -> None:
    home = installed / "pyspark"
    inside = [str(home / "python" / "lib" / "pyspark.zip"), str(home / "jars" / "spark-core.jar")]
    assert without_archives([*inside, "", str(installed)]) == ["", str(installed)]


def test_a_spark_home_of_links_to_the_installed_pyspark_is_the_same(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "python").symlink_to(installed / "pyspark" / "python")
    archive = tmp_path / "home" / "python" / "lib" / "pyspark.zip"
    assert without_archives([str(archive), str(installed)]) == [str(installed)]


def test_archives_of_another_spark_stay(installed: Path, tmp_path: Path) -> None:
    path = [str(tmp_path / "spark" / "python" / "lib" / "pyspark.zip"), str(installed)]
    assert without_archives(path) == path


def test_archives_stay_where_no_pyspark_is_on_the_path(installed: Path) -> None:
    path = [str(installed / "pyspark" / "python" / "lib" / "pyspark.zip"), "elsewhere"]
    assert without_archives(path) == path


@pytest.fixture
def socket_folder() -> Iterator[str]:
    """A folder with a short path: that of a socket has at most 107 bytes."""
    with TemporaryDirectory() as folder:
        yield folder


def test_the_daemon_ends_without_a_report_of_what_it_kept(socket_folder: str) -> None:
    """DuckDB's binding reports every object that outlives the interpreter, and frozen ones do."""
    program = [sys.executable, "-m", "slackwater.pipeline.worker_daemon", "pyspark.worker"]
    sockets = {"PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": socket_folder}
    # The shell keeps the daemon from being a leader, who must not make a process group.
    shell = ["/bin/sh", "-c", '"$@"; exit $?', "sh", *program]
    ended = subprocess.run(
        shell, stdin=subprocess.DEVNULL, capture_output=True, env=os.environ | sockets, check=False
    )
    assert ended.stderr == b""
    assert socket_folder.encode() in ended.stdout  # it has served


IMPORTED = """
import gc, sys
from slackwater.pipeline.worker_daemon import import_what_tasks_need
import_what_tasks_need()
assert gc.get_freeze_count() > 10_000
print(*[name for name in sys.argv[1:] if name not in sys.modules])
"""
NEEDED = ("slackwater.pipeline.batch_job", "confluent_kafka", "duckdb", "lmdb", "msgspec", "zstandard")


def test_workers_are_forked_with_all_that_tasks_import() -> None:
    """Each of them would import it again otherwise."""
    program = [sys.executable, "-c", IMPORTED, *NEEDED]
    missing = subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()
    assert missing == []
