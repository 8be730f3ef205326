"""The exactly-once sink of search indexes: versions of documents, made visible by moving aliases.

A batch first stores new versions of its documents under a token that no alias shows, and closes the versions
that they replace with the same token. One refresh then makes all of this searchable, and one request moves
the aliases of all views to the token. Whatever else refreshes an index, in parts or as a whole, shows nothing
of a batch. An attempt that failed is followed by one with tokens of another range; what was written under
those of a lost attempt is removed, and stays invisible if it arrives later.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import blake2b
from itertools import islice
from typing import Final, NamedTuple, Unpack

import orjson

from slackwater.engine.payloads import Document, DocumentBatch
from slackwater.outputs.batch import BatchCommits
from slackwater.outputs.contract import (
    CHANGE_VALUE,
    REBUILD,
    OutputRefusedError,
    OutputTable,
    SinkSettings,
    SinkStep,
    WriteReport,
    table_lost,
)
from slackwater.outputs.search.ledger import (
    FROM,
    RUN_TOKENS,
    TO,
    Json,
    Ledger,
    LedgerState,
    index_of,
    needed_rights,
    tokens,
    visible,
    with_token,
)
from slackwater.outputs.search.mapping import OWN, changed_fields, mapping_of
from slackwater.outputs.search.server import SearchError, SearchServer, SendRequest, error_of
from slackwater.outputs.sink import Failure, Sink, SinkOptions, Written
from slackwater.protocol import (
    CommitPosition,
    ConfigError,
    ProgressRecord,
    SearchSettings,
    encode_progress_record,
)
from slackwater.protocol.errors import run_overtaken

_DOCUMENTS_AT_ONCE: Final = 1000
_BYTES_AT_ONCE: Final = 4 << 20
_UNSAFE: Final = {"index.translog.durability": "async", "index.replication.type": "SEGMENT"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSinkSettings(SinkSettings):
    """The indexes of a pipeline."""

    outputs: tuple[OutputTable, ...]
    """The outputs by number of the view, each with a different alias as its name."""
    search: SearchSettings


class _Operation(NamedTuple):
    """One operation of a bulk request."""

    kind: str
    target: Json
    source: bytes = b""
    document: Document | None = None
    """What it writes, if it is a document."""


class SearchSink(Sink):
    """A :class:`~slackwater.outputs.sink.Sink` that writes an index per view."""

    _settings: SearchSinkSettings
    _failures = (SearchError,)

    def __init__(
        self, settings: SearchSinkSettings, send: SendRequest | None = None, **options: Unpack[SinkOptions]
    ) -> None:
        server = SearchServer(replace(settings.search, timeout=settings.request_timeout), send)
        super().__init__(settings, server.place, "its ledger", **options)
        self._server = server
        aliases = [output.name for output in settings.outputs]
        self._ledger = Ledger(server, settings.pipeline, self._run, aliases)
        self._kept_in = f"its ledger, index {self._ledger.index}"
        self._state = self._next = LedgerState({})
        """What is visible, and what the next commit makes visible."""
        self._is_settled = False
        """Whether nothing was written under this run's number that is not visible."""
        self._aging: tuple[int, float] | None = None
        """A visible token, and when it was noted: versions that it had replaced by then are removed later."""

    def write(self, query_id: str, batch: DocumentBatch) -> WriteReport:
        """See :meth:`Sink.write`. Now and then, it removes replaced versions after the batch."""
        report = super().write(query_id, batch)
        self._remove_replaced()
        return report

    def hold(self, commits: Mapping[CommitPosition, datetime]) -> Mapping[CommitPosition, str]:
        """See :meth:`Sink.hold`. No state can be held."""
        return dict.fromkeys(commits, "a search index keeps no former states")

    def close(self) -> None:
        """See :meth:`Sink.close`. There is nothing to release: each request has its own connection."""

    def _judged(self, what: str, error: Exception) -> Failure:
        if isinstance(error, SearchError) and not error.is_transient:
            pipeline, hint = self._settings.pipeline, "correct what the message names, then start again"
            if error.status in (401, 403):
                rights = needed_rights(pipeline, [output.name for output in self._settings.outputs])
                hint = f"remove the block of the index, or give the pipeline's user its rights ({rights}), "
                hint += "then start the pipeline again"
            raise OutputRefusedError(pipeline, what, str(error), hint) from error
        # What is missing may have been taken over: another attempt finds out.
        return Failure(str(error), 2 if isinstance(error, SearchError) and error.is_missing else 1)

    def _read(self) -> ProgressRecord | None:
        return self._examined().progress

    def _examined(self) -> LedgerState:
        """Returns what exists, after checks of the cluster and of the indexes; changes nothing."""
        self._server.check_version()
        state = self._ledger.load()
        self._check_indexes(state)
        return state

    def _take_over(self) -> ProgressRecord | None:
        state = self._examined()
        if not state.run:
            self._ledger.create()
        for output in self._settings.outputs:
            index, mapping = index_of(output.name), mapping_of(self._settings.pipeline, output.columns)
            if index in state.indexes:
                self._server.ask("PUT", f"/{index}/_mapping", mapping)  # refuses fields of other types
            else:
                self._ledger.create_index(index, mapping, {output.name: {"filter": visible(())}})
        return self._advance()

    def _check_indexes(self, state: LedgerState) -> None:
        """Refuses indexes that are not the pipeline's, or not those that its newest batch was written to."""
        pipeline, accepts = self._settings.pipeline, self._settings.accept_changed_output
        for index in state.indexes.keys() - set(self._ledger.indexes):
            raise ConfigError(
                f"pipeline {pipeline!r}: the alias of a view is also the name or an alias of index {index}",
                "name another index in pipeline.toml, or remove this one from the alias",
            )
        for output in self._settings.outputs:
            index = index_of(output.name)
            if state.token and state.uuid(index) != state.uuids.get(index) and not accepts:
                raise table_lost(pipeline, output, index, "", f"it together with {self._ledger.index}")
            if index in state.indexes:
                self._check_index(output, index, state)

    def _check_index(self, output: OutputTable, index: str, state: LedgerState) -> None:
        pipeline, there = self._settings.pipeline, state.indexes[index]
        where, mapping = f"pipeline {pipeline!r}: index {index}", mapping_of(pipeline, output.columns)
        if not state.run or there["mappings"].get("_meta", {}).get(OWN) != pipeline:
            raise ConfigError(
                f"{where} is not one that the pipeline or its ledger knows",
                f"name another index for view {output.view!r} in pipeline.toml, or delete this one",
            )
        for name, value in _UNSAFE.items():
            if there["settings"].get(name) == value:
                problem = f"{where} has {name} = {value}, which can lose parts of a batch"
                raise ConfigError(problem, "change it, or the template that sets it")
        if changed := "; ".join(changed_fields(mapping, there["mappings"])):
            problem = f"{where} does not fit view {output.view!r}: field {changed}"
            raise ConfigError(problem, REBUILD)

    def _advance(self) -> ProgressRecord | None:
        """Gets a new range of tokens, then removes what was written under others and lost."""
        found = self._ledger.load()
        self._check_indexes(found)
        self._ledger.take(found)
        self._state = state = self._ledger.load()
        if state.run != self._run:
            raise run_overtaken(self._settings.pipeline, f"{self._ledger.index} is of run {state.run}")
        self._refresh(self._ledger.indexes)
        for output in self._settings.outputs:
            for name, kind in ((FROM, "delete"), (TO, "update")):
                below = {"range": {name: {"lt": state.epoch * RUN_TOKENS}}}
                lost = {"bool": {"filter": [below], "must_not": [tokens(name, state.committed)]}}
                self._sweep(index_of(output.name), lost, kind)
        self._is_settled = True
        if state.progress is not None:
            progress = self._rooted(state.progress)
            source = orjson.dumps({"doc": {"state": {"progress": encode_progress_record(progress).decode()}}})
            self._bulk(self._ledger.index, [_Operation("update", {"_id": str(state.token)}, source)])
            self._state = replace(state, progress=progress)
        return self._state.progress

    def _begin(self, batch: DocumentBatch) -> ProgressRecord | None:
        """See :meth:`Sink._begin`. If another run has taken over, the first request that writes fails."""
        if self._is_settled:
            return self._state.progress
        found = self._ledger.load()
        if found.run != self._run:
            raise run_overtaken(self._settings.pipeline, f"{self._ledger.index} is of run {found.run}")
        return self._advance()

    def _put(self, batch: DocumentBatch, progress: ProgressRecord) -> Written:
        self._probe(SinkStep.BEGUN, batch.batch_id)
        self._is_settled = False
        settings, state, written = self._settings, self._state, Written()
        token = max(state.epoch * RUN_TOKENS, state.token) + 1
        keys_move = [output.keys_move for output in settings.outputs]
        commits = BatchCommits(batch, settings.emit, settings.scope, keys_move)
        filled = [number for number in range(len(settings.outputs)) if batch.payloads.get(number)]
        for number in filled:
            self._put_view(settings.outputs[number], commits.shown(number), token, written)
            if number == filled[0]:
                self._probe(SinkStep.PRODUCED, batch.batch_id)
        uuids = {index: state.uuid(index) for index in self._ledger.indexes}
        committed = with_token(state.committed, token)
        self._next = replace(state, token=token, progress=progress, committed=committed, uuids=uuids)
        self._put_record(batch)
        self._refresh(self._ledger.indexes)
        self._probe(SinkStep.FLUSHED, batch.batch_id)
        return written

    def _put_record(self, batch: DocumentBatch) -> None:
        state, header = self._next, batch.header
        assert state.progress is not None  # noqa: S101 - it was put
        record = {
            "token": state.token,
            "pipeline": self._settings.pipeline,
            "batch_id": batch.batch_id,
            "source": header.source,
            "timeline": header.timeline,
            "previous_lsn": header.from_lsn,
            "commit_lsn": header.to_lsn,
            "written_at": self._clock.now().isoformat(timespec="milliseconds"),
            "state": {
                "progress": encode_progress_record(state.progress).decode(),
                "committed": state.committed,
                "indexes": state.uuids,
                "views": [output.view for output in self._settings.outputs],
            },
        }
        target = {"_id": str(state.token)}
        self._bulk(self._ledger.index, [_Operation("index", target, orjson.dumps(record))])

    def _put_view(self, output: OutputTable, shown: Iterable[Document], token: int, written: Written) -> None:
        """Writes the last document of each key, and closes the versions that they replace."""
        newest: dict[bytes, Document] = {}
        for each in shown:
            written.documents += 1
            written.deletes += each[2] is None
            newest[each[1]] = each
        documents, index = iter(newest.values()), index_of(output.name)
        while part := {_digest(each[1]): each for each in islice(documents, _DOCUMENTS_AT_ONCE)}:
            of_keys = {"terms": {f"{OWN}.key": [*part]}}
            replaced = {"bool": {"filter": [of_keys, visible(self._state.committed)]}}
            operations = [_closing(hit, token) for hit in self._find(index, replaced)]
            for digest, document in part.items():
                if document[2] is not None:
                    source = _with_own(document[2], {"key": digest, "from": token})
                    target = {"_id": f"{token}-{digest}"}
                    operations.append(_Operation("index", target, source, document))
            self._bulk(index, operations, output)

    def _commit(self) -> None:
        self._ledger.commit(self._next)
        state = self._ledger.load()
        if _aliases(state) != _aliases(self._next):  # readers were switched meanwhile
            self._ledger.commit(replace(self._next, indexes=state.indexes))
        self._state, self._is_settled = state, True

    def _discard(self) -> None:
        """Leaves what was written to the next attempt, or the next run, which removes it."""

    def _remove_replaced(self) -> None:
        """Removes versions that were replaced longer ago than the setting; after a failure, more remains."""
        now, state = self._clock.monotonic(), self._state
        token, since = self._aging = self._aging or (state.token, now)
        if now - since < self._settings.search.keep.total_seconds():
            return
        self._aging = state.token, now
        old = {"bool": {"filter": [{"range": {TO: {"lte": token}}}, tokens(TO, state.committed)]}}
        try:
            self._sweep(self._ledger.index, {"range": {"token": {"lt": token}}}, "delete")
            for output in self._settings.outputs:
                self._sweep(index_of(output.name), old, "delete")
        except SearchError as error:
            _log.warning("%s: replaced versions could not be removed yet: %s", self.place, error)

    def _refresh(self, indexes: Iterable[str]) -> None:
        """Makes everything that was written searchable in all copies of all shards."""
        shards = self._server.ask("POST", f"/{','.join(indexes)}/_refresh")["_shards"]
        if shards["failed"]:
            raise SearchError(f"{shards['failed']} of {shards['total']} shards were not refreshed")

    def _find(self, index: str, query: Json) -> list[Json]:
        """Returns versions that a query finds, at most as many as are written at once."""
        body = {"size": _DOCUMENTS_AT_ONCE, "_source": False, "seq_no_primary_term": True, "query": query}
        path = f"/{index}/_search?allow_partial_search_results=false"
        hits: list[Json] = self._server.ask("POST", path, body)["hits"]["hits"]
        return hits

    def _sweep(self, index: str, query: Json, kind: str) -> None:
        """Deletes the versions that a query finds, or opens them again."""
        while hits := self._find(index, query):
            deletes = [_Operation(kind, {"_id": hit["_id"]}) for hit in hits]
            self._bulk(index, deletes if kind == "delete" else [_closing(hit, None) for hit in hits])
            self._refresh([index])

    def _bulk(self, index: str, operations: list[_Operation], output: OutputTable | None = None) -> None:
        """Sends operations, under the alias that only this run has.

        Raises:
            OutputRefusedError: A document does not fit; the error names it.
        """
        path = f"/{self._ledger.run_alias(index, self._state.epoch)}/_bulk?require_alias=true"
        body, sent = bytearray(), list[_Operation]()
        for number, each in enumerate(operations, 1):
            body += orjson.dumps({each.kind: each.target}) + b"\n" + each.source + b"\n" * bool(each.source)
            sent.append(each)
            if len(body) >= _BYTES_AT_ONCE or number == len(operations):
                items = self._server.ask("POST", path, bytes(body))["items"]
                for operation, item in zip(sent, items, strict=True):
                    self._check_item(operation, item[operation.kind], output)
                body, sent = bytearray(), []

    def _check_item(self, operation: _Operation, item: Json, output: OutputTable | None) -> None:
        if "error" not in item:
            return
        error, document = error_of(item, item["status"]), operation.document
        if error.is_transient or output is None or document is None:
            raise error
        named = output.document(document[0], document[1])
        raise OutputRefusedError(self._settings.pipeline, named, str(error), CHANGE_VALUE) from error


def _aliases(state: LedgerState) -> dict[str, set[str]]:
    return {name: {*each["aliases"]} for name, each in state.indexes.items()}


def _digest(key: bytes) -> str:
    """Returns the part of ids that is the same for all versions of a key, however long it is."""
    return blake2b(key, digest_size=16).hexdigest()


def _closing(hit: Json, token: int | None) -> _Operation:
    """Returns the operation that closes a version, or opens it again, unless it has changed meanwhile."""
    target = {"_id": hit["_id"], "if_seq_no": hit["_seq_no"], "if_primary_term": hit["_primary_term"]}
    return _Operation("update", target, orjson.dumps({"doc": {OWN: {"to": token}}}))


def _with_own(document: bytes, own: Json) -> bytes:
    """Returns a document with the field of the versions at its beginning; its other bytes stay the same."""
    rest = document.strip()[1:].lstrip()
    return orjson.dumps({OWN: own})[:-1] + (b"" if rest == b"}" else b",") + rest
