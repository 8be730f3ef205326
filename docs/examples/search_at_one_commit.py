"""Searches several views of a pipeline at one commit of the source; needs nothing but Python."""

import json
from typing import Any
from urllib.request import Request, urlopen


def search(cluster: str, pipeline: str, aliases: list[str], query: dict[str, Any]) -> tuple[int, Any]:
    """Returns a commit LSN, and by alias the documents that a query finds in the views at this commit."""
    ledger = f"slackwater.{pipeline}"
    wanted = {"bool": {"should": [query, {"term": {"pipeline": pipeline}}]}}
    path = f"{','.join([ledger, *aliases])}/_search?allow_partial_search_results=false"
    body = json.dumps({"size": 1000, "query": wanted}).encode()
    header = {"Content-Type": "application/json"}
    with urlopen(Request(f"{cluster}/{path}", body, header)) as answer:  # noqa: S310 - a given address
        hits = json.load(answer)["hits"]["hits"]
    found: dict[str, list[Any]] = {name: [] for name in [ledger, *aliases]}
    for hit in hits:
        found[hit["_index"].removesuffix("-versions")].append(hit["_source"])
    (record,) = found.pop(ledger)
    return record["commit_lsn"], found
