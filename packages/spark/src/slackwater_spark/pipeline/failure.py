"""What really made a query fail."""

import re

_TRACEBACK = "Traceback (most recent call last)"
_RAISED = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt))(?:: (?P<reason>.*))?$"
)
_JAVA_FRAME = re.compile(r"^\s+at [\w.$/<>]+\(|^\s*(?:Caused by: |Driver stacktrace:|\.\.\. \d+ more)")


def root_cause(text: str) -> tuple[str, str]:
    """Name and message of the Python error in Spark's account of it; else the account's first line.

    Spark wraps what a task raises into messages of its own, and repeats stack traces of both languages. The
    error that counts is the last one of the first chain of Python tracebacks, which ends where Java's frames
    begin.
    """
    lines = text.splitlines()
    found: tuple[str, str] | None = None
    is_inside = False
    for number, line in enumerate(lines):
        if found is not None and _JAVA_FRAME.match(line):
            break
        if _TRACEBACK in line:
            is_inside = True
        elif is_inside and (raised := _RAISED.match(line)) is not None:
            is_inside = False
            message = _whole_message(raised["reason"] or "", lines[number + 1 :])
            found = raised["type"].rpartition(".")[2], message
    if found is not None:
        return found
    first = next((line.strip() for line in lines if line.strip()), "no reason given")
    return "StreamingQueryException", first


def _whole_message(first: str, following: list[str]) -> str:
    """A message of several lines: it ends at an empty line, a Java frame or the next traceback."""
    message = [first]
    for line in following:
        if not line.strip() or _JAVA_FRAME.match(line) or _TRACEBACK in line:
            break
        message.append(line)
    return "\n".join(message).strip()
