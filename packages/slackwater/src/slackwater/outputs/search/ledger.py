"""The ledger of a pipeline in a search cluster: which versions of documents are visible, and who may write.

Every version of a document is stored under the token of the attempt that wrote it, and is closed with the
token of the one that replaced it. Aliases show the versions of committed tokens only. One request moves all
aliases of a pipeline, and is refused if another run has taken over: it is the commit. Tokens increase. Those
of an attempt that was lost are never committed, so whatever arrives of it late stays invisible.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from slackwater.outputs.search.server import SearchError, SearchServer
from slackwater.protocol import MalformedRecordError, ProgressRecord, StateError, decode_progress_record
from slackwater.protocol.keys import search_ledger

FROM: Final = "slackwater.from"
TO: Final = "slackwater.to"
RUN_TOKENS: Final = 1 << 32
_MOST_RANGES: Final = 100
_LONG: Final = {"type": "long"}
_FIELDS: Final = {
    **{name: {"type": "keyword"} for name in ("pipeline", "source")},
    **dict.fromkeys(("token", "batch_id", "timeline", "previous_lsn", "commit_lsn"), _LONG),
    "written_at": {"type": "date"},
    "state": {"type": "object", "enabled": False},
}
_RUN: Final = re.compile(r".*\.run-(\d+)-([0-9a-f]+)")
Json = dict[str, Any]
Ranges = Sequence[tuple[int, int]]
"""The first and the last of tokens that were committed one after the other."""


def index_of(alias: str) -> str:
    """Returns the index with the versions that an alias shows."""
    return f"{alias}-versions"


def needed_rights(pipeline: str, aliases: Iterable[str]) -> str:
    """Returns what a cluster has to allow the user of a pipeline's runs, for people."""
    on = ", ".join(f"{alias}*" for alias in (*aliases, search_ledger(pipeline)))
    own = "create, delete, read, write, refresh, get settings, put mappings, manage aliases"
    return f"cluster:monitor/main; on {on}: {own}"


def tokens(name: str, ranges: Ranges) -> Json:
    """Returns the filter for committed tokens in a field."""
    found = [{"range": {name: {"gte": low, "lte": high}}} for low, high in ranges]
    return {"bool": {"should": found, "minimum_should_match": 1}} if found else {"match_none": {}}


def visible(ranges: Ranges) -> Json:
    """Returns the filter for the versions that are current after the committed tokens."""
    return {"bool": {"filter": [tokens(FROM, ranges)], "must_not": [tokens(TO, ranges)]}}


def with_token(ranges: Ranges, token: int) -> Ranges:
    """Returns the committed tokens with one more; beyond a hundred ranges, the oldest two become one.

    Nothing that was written with the tokens between these is left by then.
    """
    if ranges and ranges[-1][1] == token - 1:
        return [*ranges[:-1], (ranges[-1][0], token)]
    merged = [(ranges[0][0], ranges[1][1]), *ranges[2:]] if len(ranges) == _MOST_RANGES else ranges
    return [*merged, (token, token)]


@dataclass(frozen=True, slots=True)
class LedgerState:
    """What a cluster has of a pipeline at one moment."""

    indexes: Mapping[str, Any]
    """Aliases, mappings and settings of the pipeline's indexes, and of others behind its aliases, by name."""
    epoch: int = 0
    """The number of the run that may write; its id, which is empty if there is none, follows."""
    run: str = ""
    token: int = 0
    """The newest committed token; 0 if there is none."""
    progress: ProgressRecord | None = None
    committed: Ranges = ()
    uuids: Mapping[str, str] = field(default_factory=dict)
    """The identities of the indexes that the newest batch was written to."""

    def uuid(self, index: str) -> str:
        """Returns the identity of an index; empty if it does not exist."""
        return str(self.indexes[index]["settings"]["index.uuid"]) if index in self.indexes else ""


class Ledger:
    """The ledger of one pipeline, as one run writes it, and the aliases of its views.

    Methods raise :class:`SearchError`.
    """

    def __init__(self, server: SearchServer, pipeline: str, run: str, aliases: Sequence[str]) -> None:
        self._server, self._pipeline, self._run = server, pipeline, run
        ledger = search_ledger(pipeline)
        self.index = index_of(ledger)
        self._aliases = {index_of(alias): alias for alias in (ledger, *aliases)}
        self.indexes = tuple(self._aliases)
        """Its own index, then those of the views."""

    def load(self) -> LedgerState:
        """Returns what exists; raises StateError if the ledger was damaged by others."""
        names = ",".join((*self.indexes, *self._aliases.values()))
        found = self._server.ask("GET", f"/{names}?flat_settings=true&ignore_unavailable=true")
        if self.index not in found:
            return LedgerState(found)
        aliases = found[self.index]["aliases"]
        try:
            token = int(aliases[self._aliases[self.index]]["filter"]["term"]["token"])
            ((epoch, run),) = [match.groups() for match in map(_RUN.fullmatch, aliases) if match]
            if not token:
                return LedgerState(found, int(epoch), run)
            state = self._server.ask("GET", f"/{self.index}/_doc/{token}")["_source"]["state"]
            progress = decode_progress_record(state["progress"].encode())
        except (KeyError, TypeError, ValueError, MalformedRecordError, SearchError) as error:
            if isinstance(error, SearchError) and not error.is_missing:
                raise
            raise StateError(
                f"pipeline {self._pipeline!r}: its ledger, index {self.index}, was changed by others: an "
                f"alias, or the record that it shows, is missing or damaged: {error}",
                "restore it from a snapshot together with the indexes of the views; or start over: "
                f"`slackwater pipeline reset {self._pipeline}`",
            ) from error
        committed = [(low, high) for low, high in state["committed"]]
        return LedgerState(found, int(epoch), run, token, progress, committed, state["indexes"])

    def create(self) -> None:
        """Creates the ledger's own index."""
        aliases = {self._aliases[self.index]: {"filter": _of_token(0)}, self.run_alias(self.index, 0): {}}
        self.create_index(self.index, {"dynamic": "strict", "properties": _FIELDS}, aliases)

    def create_index(self, index: str, mappings: Json, aliases: Json) -> None:
        """Creates an index that is only refreshed on request."""
        settings = {"index": {"refresh_interval": "-1"}}
        self._server.ask("PUT", f"/{index}", {"settings": settings, "mappings": mappings, "aliases": aliases})

    def take(self, state: LedgerState) -> None:
        """Lets only this run write, under a new number; fails if another run has done the same."""
        actions: list[Json] = []
        for index in self.indexes:
            there = state.indexes.get(index, {}).get("aliases", ())
            actions += [removed(index, alias) for alias in there if _RUN.fullmatch(alias)]
            actions.append({"add": {"index": index, "alias": self.run_alias(index, state.epoch + 1)}})
        change_aliases(self._server, actions)

    def commit(self, state: LedgerState) -> None:
        """Makes a state visible; fails if another run has taken over or an index was created again.

        Other aliases with such filters are moved, too, as are those that readers were switched to.
        """
        actions: list[Json] = []
        for index, usual in self._aliases.items():
            own, there = self.run_alias(index, state.epoch), state.indexes[index]["aliases"]
            wanted = _of_token(state.token) if index == self.index else visible(state.committed)
            filters = {name: str(each.get("filter")) for name, each in there.items() if name != usual}
            similar = [name for name, each in filters.items() if FROM in each or "'token'" in each]
            actions += [removed(index, each) for each in (own, *similar)]
            actions.append({"add": {"index": index, "alias": own}})
            actions += [
                {"add": {"index": index, "alias": each, "filter": wanted}} for each in (usual, *similar)
            ]
        change_aliases(self._server, actions)

    def run_alias(self, index: str, epoch: int) -> str:
        """Returns the alias under which only this run writes to an index."""
        return f"{index}.run-{epoch}-{self._run}"


def change_aliases(server: SearchServer, actions: list[Json]) -> None:
    """Makes all changes at once, or none; raises SearchError."""
    if not server.ask("POST", "/_aliases", {"actions": actions}).get("acknowledged"):
        raise SearchError("not every node has confirmed the aliases")


def removed(index: str, alias: str) -> Json:
    """Returns the action that removes an alias; if it is missing, nothing of the request is done."""
    return {"remove": {"index": index, "alias": alias, "must_exist": True}}


def _of_token(token: int) -> Json:
    return {"term": {"token": token}}
