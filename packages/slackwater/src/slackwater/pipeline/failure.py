"""Finds the error that made a batch fail in the text of Spark's error."""

import re

_TRACEBACK = "Traceback (most recent call last)"
_RAISED = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt))(?:: (?P<reason>.*))?$"
)
_JAVA_CAUSE = re.compile(r"^(?:: |Caused by: )(?P<type>[\w.$]+): (?P<reason>.+)$")
"""The error of a call into Java, and its causes."""
_JAVA_FRAME = re.compile(r"^\s+at [\w.$/<>]+\(|^\s*(?:Caused by: |Driver stacktrace:|\.\.\. \d+ more)")
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")
"""The suffix that Spark adds to every error of a task."""
_WORKER_ENDED = "Python worker exited unexpectedly"
_CANCELLED = "[SPARK_JOB_CANCELLED]"


def root_cause(text: str) -> tuple[str, str]:
    """Returns name and message of the Python error in the text, or else of Java's deepest cause.

    Spark wraps the error of a task in messages of its own, and repeats stack traces of both languages. The
    relevant error is the last one of the first chain of Python tracebacks, which ends where Java's frames
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
    if _WORKER_ENDED in text:
        return (
            "PythonProcessEndedError",
            "a Python process that computes batches ended at each of Spark's attempts; perhaps it was "
            "killed, or ran out of memory. Nothing is lost: start the pipeline again",
        )
    causes = [cause for line in lines if (cause := _JAVA_CAUSE.match(line)) is not None]
    if causes:
        return causes[-1]["type"].rpartition(".")[2], causes[-1]["reason"]
    return "SparkError", next((line.strip() for line in lines if line.strip()), "no reason given")


def is_cancelled(text: str) -> bool:
    """Returns whether the text says that the batch was cancelled."""
    return _CANCELLED in text and _TRACEBACK not in text


def _whole_message(first: str, following: list[str]) -> str:
    """Joins the lines of a message, which ends at an empty line, a Java frame or the next traceback."""
    message = [first]
    for line in following:
        if not line.strip() or _JAVA_FRAME.match(line) or _TRACEBACK in line:
            break
        message.append(line)
    return _SQL_STATE.sub("", "\n".join(message)).strip()
