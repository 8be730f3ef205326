"""``python -m infra.audit``: asks the vulnerability database about everything that the lock files install.

The exit code is 1 if something is known about a package that is not ignored for a reason, and with
``--strict`` also if the database cannot be reached. Without it, that is said in one line.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from slackwater.protocol import SystemClock

_ROOT = Path(__file__).resolve().parents[2]
_LOCKS = (_ROOT / "requirements.lock", _ROOT / "infra" / "bootstrap" / "uv.lock")
_IGNORED = Path(__file__).parent / "ignored.toml"
_ANSWER_SECONDS = 15


class UnreachableDatabaseError(Exception):
    """The vulnerability database did not answer, or what answered is none."""


class AuditError(Exception):
    """The audit itself cannot be made."""


@dataclass(frozen=True, slots=True)
class Advisory:
    """What is known about a package."""

    package: str
    version: str
    """The one that a lock file installs."""
    names: tuple[str, ...]
    """The first one is the database's own."""
    text: str
    """One line."""
    fixed: tuple[str, ...]
    """Versions that are not affected."""

    def __str__(self) -> str:
        name = " = ".join(self.names)
        fixed = f"fixed in {', '.join(self.fixed)}" if self.fixed else "no version is fixed yet"
        return f"{self.package} {self.version}: {name}: {self.text} ({fixed})"


@dataclass(frozen=True, slots=True)
class Ignored:
    """An advisory that does not concern us, why, and the last day on which this is taken for granted."""

    id: str
    package: str
    reason: Annotated[str, msgspec.Meta(min_length=1)]
    until: date

    def is_about(self, advisory: Advisory) -> bool:
        """Tells whether it is this advisory, by any of its names."""
        return self.package == advisory.package and self.id in advisory.names


_FILE = click.Path(path_type=Path)


@click.command(help=__doc__)
@click.option("--strict", is_flag=True, help="fail if the database cannot be reached")
@click.option("--database", metavar="URL", help="a service that answers as OSV's query does")
@click.option("--lock", "locks", type=_FILE, multiple=True, default=_LOCKS, help="other lock files")
@click.option("--ignored", type=_FILE, default=_IGNORED, help="another list")
def main(strict: bool, database: str | None, locks: Sequence[Path], ignored: Path) -> None:
    """Runs the command."""
    is_failed = True
    try:
        entries = read_ignored(ignored)
        count, advisories = ask_database(locks, database)
        said = list(judge(advisories, entries, SystemClock().now().date()))
    except UnreachableDatabaseError as error:
        is_failed, said = strict, [f"the vulnerability database cannot be reached ({error})"]
    except AuditError as error:
        said = [str(error)]
    if not said:
        passed_over = f", {len(advisories)} ignored for a reason" if advisories else ""
        click.echo(f"audit: {count} packages, no known vulnerability{passed_over}", err=True)
        return
    for line in said:
        click.echo(f"audit {'failed' if is_failed else 'skipped'}: {line}", err=True)
    sys.exit(int(is_failed))


def judge(advisories: Sequence[Advisory], ignored: Sequence[Ignored], today: date) -> Iterator[str]:
    """Yields what is wrong, and what to do about it; reasons expire."""
    for advisory in advisories:
        entry = next((each for each in ignored if each.is_about(advisory)), None)
        if entry is None:
            yield (
                f"{advisory}; raise it by `make lock UPGRADE={advisory.package}`, "
                "or say in infra/audit/ignored.toml why it does not concern Slackwater"
            )
        elif entry.until < today:
            yield f"{advisory}; it was ignored until {entry.until}: {entry.reason}"
    for entry in ignored:
        if not any(map(entry.is_about, advisories)):
            yield f"{entry.id} of {entry.package} is ignored, but not known any more: remove it from the list"


def read_ignored(path: Path) -> list[Ignored]:
    """Returns the list of advisories that do not concern us.

    Raises:
        AuditError: An entry is incomplete.
    """
    try:
        return msgspec.toml.decode(path.read_bytes(), type=dict[str, list[Ignored]]).get("ignored", [])
    except msgspec.ValidationError as error:
        needs = "an id, a package, a reason, and a date such as 2027-03-31 as `until`"
        raise AuditError(f"{path}: each entry needs {needs}: {error}") from error


def ask_database(locks: Sequence[Path], database: str | None) -> tuple[int, list[Advisory]]:
    """Returns how many packages the locks install, and what is known about them.

    ``database`` is the address of a service that answers as OSV's; None: the one that pip-audit knows.

    Raises:
        UnreachableDatabaseError: There is no answer.
        AuditError: pip-audit cannot read the lock files.
    """
    argv = [sys.executable, "-m", "pip_audit", "--disable-pip", "--vulnerability-service", "osv"]
    argv += ["--format", "json", "--progress-spinner", "off", "--timeout", str(_ANSWER_SECONDS)]
    argv += [word for lock in locks for word in ("--requirement", str(lock))]
    argv += ["--osv-url", database] if database else []
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.strip().rpartition("\n")[2]
        # pip-audit lets the errors of its HTTP library through; only some of them it puts into words.
        if "requests.exceptions." in done.stderr or "may be blocking this service" in done.stderr:
            raise UnreachableDatabaseError(last.partition(":")[0].rpartition(".")[2] or last) from None
        raise AuditError(f"pip-audit says: {last}") from None
    packages = found["dependencies"]
    for package in packages:
        if "skip_reason" in package:
            raise AuditError(f"{package['name']} was not examined: {package['skip_reason']}")
    if not packages:
        raise AuditError(f"no package is named in {', '.join(map(str, locks))}")
    advisories = [
        Advisory(
            package["name"],
            package["version"],
            (each["id"], *sorted(set(each["aliases"]) - {each["id"]})),
            each["description"],
            tuple(each["fix_versions"]),
        )
        for package in packages
        for each in package["vulns"]
    ]
    return len(packages), advisories


if __name__ == "__main__":
    main()
