"""Folders that several packages use."""

from collections.abc import Mapping
from pathlib import Path


def user_cache(environment: Mapping[str, str]) -> Path | None:
    """Returns the folder for files that can be recreated: jars, archives of classes, indexes.

    It is ``SLACKWATER_CACHE``, or else ``slackwater`` in the user's cache folder; None if the account has no
    home folder.
    """
    if chosen := environment.get("SLACKWATER_CACHE"):
        return Path(chosen).absolute()
    try:
        base = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    except RuntimeError:
        return None
    return Path(base, "slackwater").absolute()
