"""Finds the error that made a query fail in Spark's account of it."""

import re

_TRACEBACK = "Traceback (most recent call last)"
_RAISED = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt))(?:: (?P<reason>.*))?$"
)
_HANDED_ON = "Py4JJavaError"
_CAUSED_BY = re.compile(r"^Caused by: (?P<type>[\w.$]+): (?P<reason>.+)$")
_QUERY_FAILED = r"(?:terminated with exception: +|\A(?=.*\n=== Streaming Query ===))"
"""The beginning of Spark's account of a query that failed; of one that has not begun, its error."""
_PROCESS_ENDED = re.compile(
    _QUERY_FAILED + r"(?P<told>Broken pipe|Connection reset(?: by peer)?|(?= *SQLSTATE)) *(?:SQLSTATE|$)",
    re.M,
)
"""Spark asks a Python process of its own for offsets and tasks; its end is told as that of a connection."""
_PROCESS_LATE = re.compile(_QUERY_FAILED + r"Python worker failed to connect back")
"""Spark gives that process ten seconds to start, whatever its settings are."""
RESTARTABLE = frozenset({"PythonProcessEndedError", "PythonProcessLateError"})
"""Causes that lie in a process of the query's own, and that a query that starts again may not meet."""
_JAVA_FRAME = re.compile(r"^\s+at [\w.$/<>]+\(|^\s*(?:Caused by: |Driver stacktrace:|\.\.\. \d+ more)")


def root_cause(text: str) -> tuple[str, str]:
    """Returns name and message of the Python error in Spark's account; else the account's first line.

    Spark wraps what a task raises into messages of its own, and repeats stack traces of both languages. The
    error that counts is the last one of the first chain of Python tracebacks, which ends where Java's frames
    begin. If that one only hands on what Java told it, Java's own cause counts.
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
        return _java_cause(text) if found[0] == _HANDED_ON else found
    if (ended := _PROCESS_ENDED.search(text)) is not None:
        told = ended["told"] or "end of its stream"
        return (
            "PythonProcessEndedError",
            f"the Python process in which Spark plans batches ended ({told}): killed, or out of memory? "
            "Nothing is lost: start the pipeline again",
        )
    if _PROCESS_LATE.search(text) is not None:
        return (
            "PythonProcessLateError",
            "the Python process in which Spark plans batches did not start within 10 s: the machine is too "
            "busy. Nothing is lost: start the pipeline again",
        )
    first = next((line.strip() for line in lines if line.strip()), "no reason given")
    return "StreamingQueryException", first


def _java_cause(text: str) -> tuple[str, str]:
    """Finds why a call into Java failed: a Python error in a task, or Java's deepest cause."""
    told = text.partition(_HANDED_ON)[2]
    if _TRACEBACK in told and _HANDED_ON not in told:
        return root_cause(told)
    causes = [found for line in told.splitlines() if (found := _CAUSED_BY.match(line)) is not None]
    if not causes:
        return _HANDED_ON, _whole_message("", told.partition(":")[2].splitlines())
    return causes[-1]["type"].rpartition(".")[2], causes[-1]["reason"]


def _whole_message(first: str, following: list[str]) -> str:
    """Joins a message of several lines, which ends at an empty line, a Java frame or the next traceback."""
    message = [first]
    for line in following:
        if not line.strip() or _JAVA_FRAME.match(line) or _TRACEBACK in line:
            break
        message.append(line)
    return "\n".join(message).strip()
