"""The settings file that the local stack leaves, so that all commands find its servers."""

from collections.abc import Mapping
from pathlib import Path

import orjson

from slackwater_command.errors import CommandInputError

FIRST_LINE = "# Written by `slackwater dev up`, which writes it again as long as this line stands here."


def settings_text(values: Mapping[str, str]) -> str:
    """Returns the file's text.

    Args:
        values: By the path of the setting; those without a section first.
    """
    lines, section = [FIRST_LINE], ""
    for path, value in values.items():
        own, _, key = path.rpartition(".")
        if own != section:
            lines += ["", f"[{own}]"]
            section = own
        lines.append(f"{key} = {orjson.dumps(value).decode()}")
    return "\n".join(lines) + "\n"


def write_settings(path: Path, values: Mapping[str, str]) -> bool:
    """Writes the file, unless somebody else has written one; says if it did.

    Raises:
        CommandInputError: the file cannot be read or written.
    """
    try:
        if path.exists() and not path.read_text(encoding="utf-8").startswith(FIRST_LINE):
            return False
        path.write_text(settings_text(values), encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandInputError(f"settings file {path}: {error}") from error
    return True
