"""Whether the tables that a pipeline reads are completely in their topics, by the catalogue of the database.

A run compares the catalogue with what it was when the pipeline began, because some statements change rows
without any event. What it compares with is kept in the checkpoint.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Final

import msgspec
import psycopg

from slackwater.cdc.captured import CapturedFinding, SeenTable
from slackwater.cdc.catalogue import examine_tables, find_publication
from slackwater.observe.repeating import Repeating
from slackwater.pipeline.checkpoint import CATALOGUE_FILE, Checkpoint
from slackwater.pipeline.definition import PipelineDefinition, declared_keys, used_columns
from slackwater.protocol import InputError, SourceTopics, hide

LOOK_SECONDS: Final = 5.0
"""The time between two looks at the catalogue."""
_CONNECT_SECONDS: Final = 5

_log = logging.getLogger(__name__)


class _Kept(msgspec.Struct, frozen=True):
    """What the checkpoint has of the catalogue."""

    tables: Mapping[str, SeenTable] = {}
    """The tables as they were when nothing was wrong with them."""
    findings: tuple[CapturedFinding, ...] = ()
    """What was wrong at some look, and what no later look can disprove."""


class CatalogueCheck:
    """Looks at the catalogue of a source's database, at first when asked, then every few seconds.

    A thread looks; :meth:`check` keeps what it saw, in the thread of the caller.

    Args:
        definition: The pipeline.
        database: The address of the database; None if it is not known: then nothing is ever found.
        user: The connector's user there, for row-level security; empty if it is not known.
        checkpoint: The pipeline's.
    """

    def __init__(
        self, definition: PipelineDefinition, database: str | None, user: str, checkpoint: Checkpoint
    ) -> None:
        self._name, self._source = definition.name, definition.source
        self._topics = SourceTopics(definition.source, definition.topics)
        self._used: Mapping[str, Collection[str]] = used_columns(definition.plan)
        self._keys = declared_keys(definition.plan)
        self._database, self._user = database, user
        self._checkpoint = checkpoint
        self._seen: tuple[Mapping[str, SeenTable], list[CapturedFinding]] | None = None
        self._kept = _Kept()
        self._written: _Kept | None = None
        """What the pipeline's own checkpoint has; a copied state begins with what its origin kept."""
        self._looks = Repeating("catalogue-check", self._look_again, LOOK_SECONDS)
        self._is_away = False

    def first_look(self, copied: Checkpoint | None = None) -> tuple[CapturedFinding, ...]:
        """Looks now, and returns what is wrong; nothing is written.

        Args:
            copied: The checkpoint of the revision whose state the pipeline begins with, if there is one.

        Raises:
            UnavailableError: The checkpoint's store does not answer.
            psycopg.Error: The database does not answer.
        """
        kept = self._written = _read(self._checkpoint)
        if kept is None and copied is not None:
            kept = _read(copied)
        self._kept = kept or _Kept()
        self._look()
        found = () if self._seen is None else tuple(self._seen[1])
        return (*self._kept.findings, *(each for each in found if each not in self._kept.findings))

    def begin(self) -> None:
        """Begins to look every few seconds, in a thread."""
        if self._database is not None:
            self._looks.begin()

    def check(self) -> None:
        """Keeps what was seen since the last call; returns quickly if that is nothing new.

        Raises:
            InputError: Rows of a table are not all in its topic.
            UnavailableError: The checkpoint's store does not answer.
        """
        seen, self._seen = self._seen, None
        if seen is None:
            return
        tables, found = seen
        lasting = (each for each in found if each.proof is None and each not in self._kept.findings)
        kept = _Kept(tables, (*self._kept.findings, *lasting))
        if kept != self._written:
            self._checkpoint.store.write(CATALOGUE_FILE, msgspec.json.encode(kept))
            self._kept = self._written = kept
        self.refuse([*kept.findings, *found])

    def refuse(self, found: Collection[CapturedFinding]) -> None:
        """Does nothing if nothing was found.

        Raises:
            InputError: Something was.
        """
        for first in found:
            others = len({each.text for each in found}) - 1
            more = f" (and {others} more; `slackwater run --dry-run` lists them)" if others else ""
            text = f"pipeline {self._name!r} stops: table {first.table}: {first.text}{more}"
            raise InputError(text, first.hint)

    def warn(self, error: psycopg.Error) -> None:
        """Logs, once, that the database does not answer."""
        if not self._is_away:
            reason = hide(" ".join(str(error).split()), (self._database or "",))
            _log.warning("the catalogue of source %s cannot be read: %s", self._source, reason)
        self._is_away = True

    def close(self) -> None:
        """Ends the thread, unless it waits for the database. Idempotent."""
        self._looks.close(_CONNECT_SECONDS)

    def _look_again(self) -> None:
        try:
            self._look()
            self._is_away = False
        except psycopg.Error as error:
            self.warn(error)

    def _look(self) -> None:
        if self._database is None:
            return
        with psycopg.connect(self._database, connect_timeout=_CONNECT_SECONDS, autocommit=True) as connection:
            tables, found = examine_tables(
                connection,
                self._used,
                self._kept.tables,
                topics=self._topics,
                publication=find_publication(connection, self._source),
                user=self._user,
                keys=self._keys,
            )
        if self._kept.tables or any(table.oid for table in tables.values()):
            self._seen = tables, found
        elif not self._is_away:
            self._is_away = True
            _log.warning("postgres.url is no database of source %s: it has none of the tables", self._source)


def _read(checkpoint: Checkpoint) -> _Kept | None:
    data = checkpoint.store.read(CATALOGUE_FILE)
    return None if data is None else msgspec.json.decode(data, type=_Kept)
