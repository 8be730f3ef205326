"""Switches the readers of a pipeline's search indexes from one revision to another."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from slackwater.client.errors import NotVisibleError
from slackwater.client.readers import Switched, Views, base_name, check_not_behind, check_views
from slackwater.client.snapshot import VisibleCommit, repeated, visible, visible_commit
from slackwater.outputs.search.ledger import change_aliases, index_of, removed
from slackwater.outputs.search.server import SearchError, SearchServer
from slackwater.protocol import UnavailableError, decode_progress_record
from slackwater.protocol.keys import search_ledger

Record = Mapping[str, Any]


@contextmanager
def answered(server: SearchServer) -> Iterator[None]:
    """Translates errors of a cluster for people."""
    try:
        yield
    except SearchError as error:
        raise UnavailableError(f"{server.place}: {error}", "check the address and the rights") from error


def readers_alias(pipeline: str, view: str = "readers") -> str:
    """Returns the alias for readers that are switched; without a view, that of the ledger's record."""
    name = base_name(pipeline)
    return f"{search_ledger(name)}.{view}" if view == "readers" else f"{name}.{view}"


def ledger_record(server: SearchServer, alias: str) -> Record | None:
    """Returns the record that an alias of a ledger shows; raises SearchError."""
    if not _filters(server, alias):
        return None
    hits = server.ask("POST", f"/{alias}/_search", {"size": 1, "query": {"match_all": {}}})["hits"]["hits"]
    return dict(hits[0]["_source"]) if hits else None


def switch_indexes(
    server: SearchServer,
    pipeline: str,
    views: Views,
    *,
    accept_earlier: bool = False,
    source: str | None = None,
    timeout: timedelta = timedelta(seconds=30),
) -> Switched:
    """Moves the readers' aliases to the indexes of a pipeline, given the alias of each view, all at once.

    Otherwise it does what :meth:`slackwater.client.readers.Readers.switch` does, and raises the same.
    """

    def attempt() -> Switched:
        before, now = ledger_record(server, readers), ledger_record(server, search_ledger(pipeline))
        seen, newest = _commit(before, source), visible(pipeline, _commit(now, source))
        if before is not None and seen is not None:
            check_views(before["pipeline"], before["state"]["views"], pipeline, views)
            if not accept_earlier or seen.source != newest.source:
                check_not_behind(before["pipeline"], seen, pipeline, newest)
        own = {readers_alias(pipeline, view): alias for view, alias in views.items()}
        _move(server, {**own, readers: search_ledger(pipeline)})
        left_at = None if seen is None else seen.position
        return Switched(None if before is None else before["pipeline"], left_at, newest.position)

    readers = readers_alias(pipeline)
    with answered(server):
        return repeated(attempt, timeout, None, (NotVisibleError,))


def _move(server: SearchServer, wanted: Mapping[str, str]) -> None:
    """Makes aliases show what others show, and nothing else."""
    actions = [removed(index, alias) for alias in wanted for index in _filters(server, alias)]
    shown, newer = None, _shown(server, wanted)
    # A batch may be committed before its run can see the new aliases.
    while shown != newer:
        shown = newer
        change_aliases(server, [*actions, *({"add": each} for each in shown)])
        actions, newer = [], _shown(server, wanted)


def _shown(server: SearchServer, wanted: Mapping[str, str]) -> list[dict[str, Any]]:
    places = [(alias, own, index_of(own)) for alias, own in wanted.items()]
    return [{"index": index, "alias": alias, **_filters(server, own)[index]} for alias, own, index in places]


def _filters(server: SearchServer, alias: str) -> dict[str, Any]:
    """Returns the indexes that an alias shows, with its filter in each."""
    try:
        return {name: each["aliases"][alias] for name, each in server.ask("GET", f"/_alias/{alias}").items()}
    except SearchError as error:
        if error.is_missing:
            return {}
        raise


def _commit(record: Record | None, source: str | None) -> VisibleCommit | None:
    """Returns the commit of a ledger's record, with the source's name if it is given."""
    progress = None if record is None else decode_progress_record(record["state"]["progress"].encode())
    found = visible_commit(progress)
    return found if found is None or source is None else replace(found, source=source)
