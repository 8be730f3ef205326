"""The audit asks a vulnerability database: here one that speaks OSV's protocol with a test's answers."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from infra.audit.__main__ import Advisory, AuditError, Ignored, judge, read_ignored

ROOT = Path(__file__).parents[2]
LOCK = "".join(f"{each} --hash=sha256:{'0' * 64}\n" for each in ("jinja2==2.4.1", "click==8.1.0"))
ADVISORY = {
    "id": "PYSEC-2021-66",
    "aliases": ["CVE-2020-28493"],
    "summary": "Slow for hostile text.",
    "affected": [
        {
            "package": {"name": "jinja2", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.11.3"}]}],
        }
    ],
}
IGNORED = """
[[ignored]]
id = "{id}"
package = "jinja2"
reason = "{reason}"
until = {until}
"""


class Database:
    """Answers as OSV's query does."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], list[Any]] = {}
        self.asked: set[str] = set()
        self.status = 200
        own = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                name = query["package"]["name"]
                own.asked.add(name)
                found = own.known.get((name, query["version"]))
                answer = json.dumps({"vulns": found} if found else {}).encode()
                self.send_response(own.status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/v1/query"


@pytest.fixture
def database() -> Iterator[Database]:
    found = Database()
    thread = threading.Thread(target=found.server.serve_forever, daemon=True)
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "own.lock"
    path.write_text(LOCK)
    return path


def audit(database: str, *words: str | Path) -> tuple[int, list[str]]:
    """Returns the exit code and the lines of what was said."""
    argv = [sys.executable, "-m", "infra.audit", "--database", database, *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()


def test_a_known_vulnerability_fails_and_is_named_with_what_to_do(database: Database, lock: Path) -> None:
    database.known["jinja2", "2.4.1"] = [ADVISORY]
    code, [said] = audit(database.url, "--lock", lock)
    assert code == 1
    assert said == (
        "audit failed: jinja2 2.4.1: PYSEC-2021-66 = CVE-2020-28493: Slow for hostile text. "
        "(fixed in 2.11.3); raise it by `make lock UPGRADE=jinja2`, "
        "or say in infra/audit/ignored.toml why it does not concern Slackwater"
    )


JINJA = Advisory("jinja2", "2.4.1", ("PYSEC-2021-66", "CVE-2020-28493"), "Slow.", ("2.11.3",))


@pytest.mark.parametrize("name", JINJA.names)
def test_what_is_ignored_for_a_reason_passes_until_its_date(tmp_path: Path, name: str) -> None:
    path = tmp_path / "ignored.toml"
    path.write_text(IGNORED.format(id=name, reason="No template is a stranger's.", until="2027-03-31"))
    ignored = read_ignored(path)
    assert list(judge([JINJA], ignored, date(2027, 3, 31))) == []
    [fault] = judge([JINJA], ignored, date(2027, 4, 1))
    assert fault.endswith("it was ignored until 2027-03-31: No template is a stranger's.")
    [fault] = judge([replace(JINJA, package="jinja3")], ignored[:0], date(2027, 1, 1))
    assert "make lock UPGRADE=jinja3" in fault


def test_what_is_ignored_but_unknown_is_removed_from_the_list() -> None:
    entry = Ignored("CVE-1", "jinja2", "It was.", date(2027, 1, 1))
    assert list(judge([], [entry], date(2026, 12, 1))) == [
        "CVE-1 of jinja2 is ignored, but not known any more: remove it from the list"
    ]


def test_an_entry_needs_a_reason_and_a_date(tmp_path: Path) -> None:
    path = tmp_path / "ignored.toml"
    for reason, until in (("", "2027-03-31"), ("It is so.", '"soon"')):
        path.write_text(IGNORED.format(id="CVE-1", reason=reason, until=until))
        with pytest.raises(AuditError, match=r"a reason, and a date such as .*\[0\]\.(reason|until)"):
            read_ignored(path)
    path.write_text('[[ignored]]\nid = "CVE-1"\n')
    with pytest.raises(AuditError, match="each entry needs an id, a package, a reason, and a date"):
        read_ignored(path)


def test_the_repositorys_own_list_is_read() -> None:
    read_ignored(ROOT / "infra" / "audit" / "ignored.toml")


@pytest.mark.parametrize(
    ("status", "words", "outcome"),
    [(None, (), (0, "skipped")), (None, ("--strict",), (1, "failed")), (503, (), (0, "skipped"))],
)
def test_a_database_that_cannot_be_reached_is_said_in_one_line(
    database: Database, lock: Path, status: int | None, words: tuple[str, ...], outcome: tuple[int, str]
) -> None:
    url = database.url
    if status is None:
        database.server.server_close()
    else:
        database.status = status
    code, [said] = audit(url, "--lock", lock, *words)
    assert (code, said.partition(" (")[0]) == (
        outcome[0],
        f"audit {outcome[1]}: the vulnerability database cannot be reached",
    )


def test_a_lock_file_without_hashes_is_no_audit(database: Database, tmp_path: Path) -> None:
    lock = tmp_path / "own.lock"
    lock.write_text("jinja2\n")
    code, [said] = audit(database.url, "--lock", lock)
    assert (code, said.startswith("audit failed: pip-audit says: ")) == (1, True)


def test_everything_that_is_installed_is_asked_about(database: Database) -> None:
    code, [said] = audit(database.url)
    assert (code, said) == (0, f"audit: {len(database.asked)} packages, no known vulnerability")
    assert {"pyspark", "confluent-kafka", "pip-audit", "uv"} <= database.asked


@pytest.mark.parametrize(("words", "is_strict"), [((), False), (("STRICT=1",), True)])
def test_make_check_audits(words: tuple[str, ...], is_strict: bool) -> None:
    planned = subprocess.run(
        ["make", "-n", "check", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    [line] = [line for line in planned.splitlines() if "infra.audit" in line]
    assert line.endswith("--strict") == is_strict
