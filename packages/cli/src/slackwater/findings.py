"""Findings of an examination as lines, and the exit code that follows from them."""

from collections.abc import Iterable

from slackwater_command.logs import hidden
from slackwater_command.output import Output
from slackwater_protocol import Finding


def show_findings(findings: Iterable[Finding], output: Output, when_right: str) -> int:
    """Prints each finding as it comes, with what to do below it, and how many problems there are.

    Args:
        findings: What was found.
        output: Where it is printed.
        when_right: The last line if there is no problem.

    Returns:
        The exit code: 1 if there is a problem.
    """
    problems = 0
    for found in findings:
        problems += found.verdict.is_problem
        output.line(hidden(f"{found.verdict:<8} {found.subject}: {found.text}"))
        if found.hint:
            output.line(hidden(f"{'':<8}   {found.hint}"))
    count = "1 problem" if problems == 1 else f"{problems} problems"
    output.line(count if problems else when_right)
    return 1 if problems else 0
