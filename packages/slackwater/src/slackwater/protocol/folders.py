"""Folders that several packages use."""

import os
import stat
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


def make_private_folder(folder: Path) -> None:
    """Creates a folder that only this account can use.

    Raises:
        OSError: It cannot be created, or it is a link or belongs to another account, which could replace its
            files.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is a link or belongs to another account")
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)
