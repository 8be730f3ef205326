"""Plays a cluster of OpenSearch in memory, as far as an output and its tests ask it.

The behaviour suite of outputs runs over it and over a real node.
"""

import json
import re
import uuid
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from slackwater.protocol import SearchSettings

Json = dict[str, Any]


@dataclass(slots=True)
class _Index:
    """An index with one shard."""

    mappings: Json
    settings: Json
    aliases: dict[str, Json]
    documents: dict[str, tuple[int, Json]] = field(default_factory=dict)
    """By id the sequence number and the source."""
    searchable: dict[str, tuple[int, Json]] = field(default_factory=dict)
    """What searches see: the documents at the last refresh."""
    sequence: int = 0

    def refresh(self) -> None:
        self.searchable = dict(self.documents)


class _Refusal(Exception):
    """Is answered as an error."""

    def __init__(self, status: int, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.answer = {"error": {"type": kind, "reason": reason}, "status": status}


class SearchFake:
    """A cluster; call it as what sends requests.

    Attributes:
        fails: Is asked before each request, with its method and path, and may return a status and a reason.
    """

    def __init__(self) -> None:
        self.indexes: dict[str, _Index] = {}
        self.fails: Callable[[str, str], tuple[int, str, str] | None] = lambda _method, _path: None
        self.requests: list[str] = []
        self.version: Json = {"distribution": "opensearch", "number": "2.19.6"}

    def __call__(
        self, settings: SearchSettings, method: str, address: str, path: str, body: bytes | None
    ) -> tuple[int, bytes]:
        """Answers a request."""
        del settings, address
        self.requests.append(f"{method} {path}")
        try:
            failure = self.fails(method, path)
            if failure is not None:
                raise _Refusal(*failure)
            return 200, json.dumps(self._answer(method, path, body)).encode()
        except _Refusal as error:
            return error.status, json.dumps(error.answer).encode()

    def _answer(self, method: str, path: str, body: bytes | None) -> Json:
        names, _, action = urlsplit(path).path.removeprefix("/").partition("/")
        if action == "_bulk":
            return {"items": [*self._bulk(names, (body or b"").splitlines())]}
        if names in ("", "_alias", "_aliases") or action in ("", "_mapping"):
            return self._administer(method, names, action, json.loads(body or b"{}"))
        indexes = [*self._found(names)]
        if action == "_refresh":
            for _, index, _ in indexes:
                index.refresh()
            return {"_shards": {"total": len(indexes), "failed": 0}}
        if action == "_search":
            return self._search(indexes, json.loads(body or b"{}"))
        document_id = action.removeprefix("_doc/")
        (_, index, _), *_ = indexes
        if document_id not in index.documents:
            raise _Refusal(404, "missing", f"no document {document_id}")
        return {"_source": index.documents[document_id][1]}

    def _administer(self, method: str, names: str, action: str, body: Json) -> Json:
        if not names:
            return {"version": self.version}
        if names == "_alias":
            return self._holders(action)
        if names == "_aliases":
            return self._change_aliases(body)
        if method == "GET":
            return self._describe(names.split(","))
        if action:
            return self._map(self.indexes[names].mappings, body)
        return self._make(names, body) if method == "PUT" else self._delete(names)

    def _map(self, there: Json, wanted: Json) -> Json:
        fields = there.setdefault("properties", {})
        for name, each in wanted["properties"].items():
            kinds = [found.get("type", "object") for found in (fields.get(name, each), each)]
            if len({*kinds}) > 1:
                reason = f"mapper [{name}] cannot be changed from type [{kinds[0]}] to [{kinds[1]}]"
                raise _Refusal(400, "illegal_argument_exception", reason)
            fields[name] = each
        return {"acknowledged": True}

    def _holders(self, alias: str) -> Json:
        found: Json = {
            name: {"aliases": {alias: index.aliases[alias]}}
            for name, index in self.indexes.items()
            if alias in index.aliases
        }
        if not found:
            raise _Refusal(404, "aliases_not_found_exception", f"alias [{alias}] missing")
        return found

    def _make(self, name: str, body: Json) -> Json:
        if name in self.indexes:
            raise _Refusal(400, "resource_already_exists_exception", f"index [{name}] already exists")
        for alias in body.get("aliases", {}):
            if alias in self.indexes:
                raise _Refusal(
                    400, "invalid_alias_name_exception", f"an index exists with the name [{alias}]"
                )
        settings = {f"index.{key}": value for key, value in body.get("settings", {}).get("index", {}).items()}
        settings |= {"index.uuid": uuid.uuid4().hex}
        self.indexes[name] = _Index(body.get("mappings", {}), settings, dict(body.get("aliases", {})))
        return {"acknowledged": True}

    def _delete(self, names: str) -> Json:
        for name in names.split(","):
            if self.indexes.pop(name, None) is None:
                raise _Refusal(404, "index_not_found_exception", f"no such index [{name}]")
        return {"acknowledged": True}

    def _describe(self, names: Iterable[str]) -> Json:
        wanted = {*names}
        return {
            name: deepcopy({"aliases": each.aliases, "mappings": each.mappings, "settings": each.settings})
            for name, each in self.indexes.items()
            if wanted & {name, *each.aliases}
        }

    def _change_aliases(self, body: Json) -> Json:
        changed = {name: dict(index.aliases) for name, index in self.indexes.items()}
        for action in body["actions"]:
            (kind, each), *_ = action.items()
            if each["index"] not in changed:
                raise _Refusal(404, "index_not_found_exception", f"no such index [{each['index']}]")
            aliases = changed[each["index"]]
            if kind == "add":
                aliases[each["alias"]] = {"filter": each["filter"]} if "filter" in each else {}
            elif aliases.pop(each["alias"], None) is None and each.get("must_exist"):
                raise _Refusal(404, "aliases_not_found_exception", f"aliases [{each['alias']}] missing")
        for name, found in changed.items():
            self.indexes[name].aliases = found
        return {"acknowledged": True}

    def _found(self, names: str) -> Iterable[tuple[str, _Index, Json]]:
        """Yields the indexes behind names, patterns and aliases, with the filters of the aliases."""
        for wanted in names.split(","):
            pattern = re.compile(re.escape(wanted).replace(r"\*", ".*"))
            found: list[tuple[str, _Index, Json]]
            found = [(n, i, {"match_all": {}}) for n, i in self.indexes.items() if pattern.fullmatch(n)]
            found += [
                (name, index, alias.get("filter", {"match_all": {}}))
                for name, index in self.indexes.items()
                for each, alias in index.aliases.items()
                if each == wanted
            ]
            if not found and "*" not in wanted:
                raise _Refusal(404, "index_not_found_exception", f"no such index [{wanted}]")
            yield from found

    def _search(self, indexes: Iterable[tuple[str, _Index, Json]], body: Json) -> Json:
        hits = [
            {"_index": name, "_id": key, "_seq_no": sequence, "_primary_term": 1, "_source": source}
            for name, index, wanted in indexes
            for key, (sequence, source) in index.searchable.items()
            if _matches(wanted, source) and _matches(body["query"], source)
        ]
        return {"hits": {"hits": hits[: body["size"]]}}

    def _bulk(self, alias: str, lines: list[bytes]) -> Iterable[Json]:
        rest = iter(lines)
        for line in rest:
            (kind, target), *_ = json.loads(line).items()
            source = None if kind == "delete" else json.loads(next(rest))
            try:
                holders = [index for name, index in self.indexes.items() if alias in (name, *index.aliases)]
                if not holders:
                    reason = f"[require_alias] request flag is [true] and [{alias}] is not an alias"
                    raise _Refusal(404, "index_not_found_exception", reason)
                self._apply(holders[0], kind, target, source)
                yield {kind: {"status": 200}}
            except _Refusal as error:
                yield {kind: error.answer}

    def _apply(self, index: _Index, kind: str, target: Json, source: Json | None) -> None:
        key = target["_id"]
        if "if_seq_no" in target and index.documents.get(key, (-1,))[0] != target["if_seq_no"]:
            raise _Refusal(409, "version_conflict_engine_exception", f"[{key}]: version conflict")
        index.sequence += 1
        if source is None:
            index.documents.pop(key, None)
            return
        if kind == "update":
            source = _merged(index.documents[key][1], source["doc"])
        for name, value in source.items():
            fields = index.mappings["properties"]
            if name not in fields:
                raise _Refusal(
                    400, "strict_dynamic_mapping_exception", f"[{name}] within [_doc] is not allowed"
                )
            if fields[name].get("type") == "long" and not -(2**63) <= (value or 0) < 2**63:
                raise _Refusal(
                    400, "mapper_parsing_exception", f"failed to parse field [{name}] of type [long]"
                )
        index.documents[key] = (index.sequence, source)


def _merged(source: Json, change: Json) -> Json:
    merged = {**source, **change}
    for name, value in change.items():
        if isinstance(value, dict):
            merged[name] = _merged(source[name], value)
    return merged


def _matches(query: Json, source: Json) -> bool:
    (kind, wanted), *_ = query.items()
    if kind == "bool":
        should = wanted.get("should", ())
        return (
            all(_matches(each, source) for each in wanted.get("filter", ()))
            and not any(_matches(each, source) for each in wanted.get("must_not", ()))
            and (not should or any(_matches(each, source) for each in should))
        )
    if kind in ("match_all", "match_none"):
        return kind == "match_all"
    ((name, condition),) = wanted.items()
    value: Any = source
    for part in name.split("."):
        value = None if value is None else value.get(part)
    if kind == "range":
        limits = {"gte": lambda limit: value >= limit, "lte": lambda limit: value <= limit}
        limits |= {"lt": lambda limit: value < limit}
        return value is not None and all(limits[each](limit) for each, limit in condition.items())
    return value in condition if kind == "terms" else bool(value == condition)
