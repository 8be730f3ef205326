"""PostgreSQL with logical decoding."""

import logging
import os
import shutil
import signal
import subprocess
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from slackwater_devstack.accounts import Account, can_write, run_as, unprivileged_account
from slackwater_devstack.errors import PrerequisiteError
from slackwater_devstack.ports import LOOPBACK
from slackwater_devstack.postgres_programs import PostgresPrograms, find_postgres, missing_postgres
from slackwater_devstack.processes import Launch, Lifetime
from slackwater_devstack.server import START_TIMEOUT, Server

logger = logging.getLogger(__name__)

USER = "postgres"
ELSEWHERE = "elsewhere"
INITIALISED = "slackwater.initialised"
INITDB_TIMEOUT_SECONDS = 120.0


class PostgresServer(Server):
    """A PostgreSQL cluster whose superuser ``postgres`` needs no password from loopback."""

    name: ClassVar[str] = "postgres"
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # fast shutdown: does not wait for clients

    def __init__(
        self,
        folder: Path,
        *,
        database: str = "inventory",
        fsync: bool = False,
        lifetime: Lifetime = Lifetime.EMBEDDED,
        start_timeout: timedelta = START_TIMEOUT,
    ) -> None:
        super().__init__(folder, lifetime=lifetime, start_timeout=start_timeout)
        self.database = database
        self._fsync = fsync
        self._programs: PostgresPrograms | None = None
        self._account: Account | None = None
        self._data: Path | None = None

    @property
    def port(self) -> int:
        """TCP port on loopback."""
        return self._port("port")

    @property
    def address(self) -> str:
        """DSN of the default database."""
        return self.dsn()

    def dsn(self, database: str | None = None) -> str:
        """Connection URL of a database, by default the one that the stack created."""
        return f"postgresql://{USER}@{LOOPBACK}:{self.port}/{database or self.database}"

    def data_folder(self) -> Path:
        """Where the cluster is: in the stack's folder, or in the system's temporary folder.

        The latter only for root, when the account that runs PostgreSQL cannot reach the stack's folder.
        """
        if self._data is None:
            self._account = unprivileged_account()
            self._data = _writable_folder(self.folder / "postgres", self._account)
        return self._data

    def delete_data(self) -> None:
        """Remove the cluster; the server must not run."""
        shutil.rmtree(self.data_folder(), ignore_errors=True)
        super().delete_data()
        self._data = None

    def _prepare(self) -> None:
        data = self.data_folder()
        complete = data / INITIALISED  # PG_VERSION is written long before initdb is done
        if complete.is_file():
            self._programs = self._find_programs(int((data / "PG_VERSION").read_text()))
        else:
            _empty(data)
            self._programs = self._initialise(data)
            complete.touch()
        self.version = self._programs.version

    def _find_programs(self, major: int) -> PostgresPrograms:
        found = next(find_postgres(self._account, major), None)
        if found is None:
            raise missing_postgres(
                f"no PostgreSQL {major} works here any more, which wrote {self.data_folder()}"
            )
        return found

    def _initialise(self, data: Path) -> PostgresPrograms:
        """Make a cluster with the first installation that manages to."""
        failures: list[str] = []
        for programs in find_postgres(self._account):
            argv = [str(programs.folder / "initdb"), "-D", str(data), "-U", USER]
            argv += ["-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
            try:
                result = run_as(self._account, argv, cwd=data, timeout_seconds=INITDB_TIMEOUT_SECONDS)
            except (OSError, subprocess.TimeoutExpired) as error:
                failures.append(f"{programs.folder}: {error}")
                continue
            if result.returncode == 0:
                return programs
            failures.append(f"{programs.folder}: {result.stdout.strip()[-500:]}")
        tried = "; ".join(failures)
        raise missing_postgres(f"none of those found works ({tried})" if tried else "none was found")

    def _launch(self) -> Launch:
        if self._programs is None:
            raise missing_postgres("none was looked for")
        data = self.data_folder()
        on = "on" if self._fsync else "off"
        options = {
            "port": str(self.port),
            "listen_addresses": LOOPBACK,
            "unix_socket_directories": "",
            "wal_level": "logical",
            "max_wal_senders": "20",
            "max_replication_slots": "20",
            "max_connections": "100",
            "max_prepared_transactions": "10",
            "shared_buffers": "64MB",
            "wal_sender_timeout": "0",
            "fsync": on,
            "full_page_writes": on,
        }
        argv = [str(self._programs.folder / "postgres"), "-D", str(data)]
        for name, value in options.items():
            argv += ["-c", f"{name}={value}"]
        return Launch(
            argv=tuple(argv),
            cwd=data,
            environment={"LC_ALL": "C"},
            account=self._account,
            death_signal=signal.SIGQUIT,  # the postmaster takes its children with it
        )

    def _is_ready(self) -> bool:
        import psycopg
        from psycopg import sql

        try:
            with psycopg.connect(self.dsn("postgres"), connect_timeout=2, autocommit=True) as connection:
                known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [self.database])
                if known.fetchone() is None:
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.database)))
        except psycopg.OperationalError:
            return False
        return True


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _writable_folder(wanted: Path, account: Account | None) -> Path:
    wanted.parent.mkdir(parents=True, exist_ok=True)
    if account is None:
        wanted.mkdir(mode=0o700, exist_ok=True)
        return wanted
    if not wanted.exists():
        wanted.mkdir(mode=0o700)
        os.chown(wanted, account.uid, account.gid)
    if can_write(account, wanted):
        return wanted
    return _folder_elsewhere(wanted / ELSEWHERE, account)


def _folder_elsewhere(pointer: Path, account: Account) -> Path:
    """The folder that the pointer file names, or a new one in the system's temporary folder."""
    if pointer.is_file():
        known = Path(pointer.read_text())
        if known.is_dir() and known.stat().st_uid == account.uid:
            return known
    created = Path(tempfile.mkdtemp(prefix="slackwater-postgres-"))
    os.chown(created, account.uid, account.gid)
    if not can_write(account, created):
        created.rmdir()
        what = f"a folder that the account {account.name} can write into"
        remedy = "set TMPDIR to one or choose another folder for the stack"
        raise PrerequisiteError(what, f"neither {pointer.parent} nor {created} is one", remedy)
    logger.warning(
        "%s cannot reach %s, so PostgreSQL's data goes to %s", account.name, pointer.parent, created
    )
    pointer.write_text(str(created))
    return created
