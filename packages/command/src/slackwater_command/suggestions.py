"""What a text that fits nothing was probably meant to be."""

import difflib
from collections.abc import Iterable

from slackwater_command.errors import CommandInputError
from slackwater_protocol import MalformedRecordError, parse_position

_FEW = 10
"""The number of names that are listed if none is similar."""


def unknown(what: str, name: str, known: Iterable[str], more: str = "") -> CommandInputError:
    """Returns the error for a name that nothing has.

    Args:
        what: The kind of thing, e.g. ``source``.
        name: As it was given.
        known: The names that there are.
        more: What else helps; a sentence.
    """
    names = {each.lower(): each for each in sorted(set(known))}
    close = [names[each] for each in difflib.get_close_matches(name.lower(), names, 3, 0.5)]
    if close:
        hint = f"did you mean {' or '.join(close)}?"
    else:
        hint = f"known: {', '.join(list(names.values())[:_FEW]) or 'none'}"
    return CommandInputError(f"unknown {what} {name!r}", f"{hint}; {more}" if more else hint)


def lsn_of(text: str, option: str) -> int:
    """Reads an LSN that was given with an option.

    Raises:
        CommandInputError: It is none.
    """
    try:
        return parse_position(text)
    except MalformedRecordError as error:
        hint = f"{option} takes the LSN of a commit, as PostgreSQL writes it (0/153D218) or as a number"
        raise CommandInputError(f"{option} {text!r} is no LSN", hint) from error
