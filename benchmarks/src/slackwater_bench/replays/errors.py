"""Errors of replay runs."""

from pathlib import Path

from slackwater_bench.errors import BenchError
from slackwater_protocol import format_lsn


class NotStreamingError(BenchError):
    """No transaction arrived in Kafka."""

    def __init__(self, seconds: float, log: Path) -> None:
        super().__init__(seconds, log)
        self.seconds = seconds
        self.log = log

    def __str__(self) -> str:
        return f"the connector wrote no transaction within {self.seconds:g} s; its log: {self.log}"


class ProgramEndedError(BenchError):
    """A process of the product ended by itself."""

    def __init__(self, program: str, last_words: str, log: Path) -> None:
        super().__init__(program, last_words, log)
        self.program = program
        self.last_words = last_words
        self.log = log

    def __str__(self) -> str:
        return f"the {self.program} ended; its log: {self.log}; its last words: {self.last_words[-1500:]}"


class NotCaughtUpError(BenchError):
    """The output did not arrive at the last commit."""

    def __init__(self, wanted: int, got: int, sidecar: str, logs: Path) -> None:
        super().__init__(wanted, got, sidecar, logs)
        self.wanted = wanted
        self.got = got
        self.sidecar = sidecar
        self.logs = logs

    def __str__(self) -> str:
        return (
            f"the output ends at {format_lsn(self.got)}, expected a commit above {format_lsn(self.wanted)}; "
            f"logs in {self.logs}; the sidecar's last words: {self.sidecar[-600:]}"
        )
