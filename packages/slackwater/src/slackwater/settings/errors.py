"""Errors of commands, with exit codes of their own; all others end a command with exit code 1.

::

    ConfigError
    └── CommandConfigError        a setting is unknown, invalid or missing, or an extra   exit code 2
"""

import difflib
from collections.abc import Iterable

from slackwater.protocol import ConfigError, InputError, UnavailableError

_FEW = 10
"""The number of names that are listed if none is similar."""


class CommandConfigError(ConfigError):
    """Settings that cannot be used, or an extra that is missing.

    Values are not repeated: they may be secrets.
    """

    exit_code = 2


def installing(requirement: str) -> str:
    """Returns the command that installs a package which may be in no package index; a hint."""
    return (
        f"pip install --find-links DIST '{requirement}', where DIST is the folder with Slackwater's wheels "
        "(`make wheels` in its repository writes dist/); no package index has them"
    )


def unreachable(server: str, question: str, reason: str) -> UnavailableError:
    """Returns the error for a server that did not answer a question."""
    problem = f"{server} does not answer: {question}: {reason}"
    return UnavailableError(problem, "check address and permissions")


def unknown(what: str, name: str, known: Iterable[str], more: str = "") -> InputError:
    """Returns the error for a name that nothing has.

    `more` is what else helps, a sentence.
    """
    names = sorted(set(known))
    hint = did_you_mean(name, names) or f"known: {', '.join(names[:_FEW]) or 'none'}"
    return InputError(f"unknown {what} {name!r}", f"{hint}; {more}" if more else hint)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a hint with the known names that a name resembles, those first whose last part it resembles.

    Empty if it resembles none. Upper and lower case are the same.
    """
    names = {each.lower(): each for each in known}
    last = {each.rpartition(".")[2]: each for each in names}
    similar = difflib.get_close_matches(name.lower().rpartition(".")[2], last, 1, 0.8)
    close = [*(last[each] for each in similar), *difflib.get_close_matches(name.lower(), names, 3)]
    return f"did you mean {' or '.join(names[each] for each in dict.fromkeys(close))}?" if close else ""
