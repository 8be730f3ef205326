"""Errors of the command.

::

    SlackwaterError
    ├── ConfigurationError            exit code 2
    │   ├── UnknownSettingError       a key in the file that nothing reads
    │   ├── InvalidSettingError       a value of the wrong type or out of range
    │   ├── MissingSettingError       a command needs a setting nobody gave
    │   └── SettingsFileError         the file is absent or no TOML
    ├── DecisionRefusedError          the facts speak against an operator's decision
    ├── ServerUnreachableError        Kafka or PostgreSQL does not answer a question
    ├── StateUnreadableError          what was asked of a checkpoint's state cannot be told
    ├── TopicUnavailableError         Kafka does not answer, or a topic is gone
    └── demo: slackwater.demo.errors
"""

from collections.abc import Sequence


class SlackwaterError(Exception):
    """Root of everything this package raises."""

    exit_code = 1


class ConfigurationError(SlackwaterError):
    """Settings that cannot be used: the caller has to change them."""

    exit_code = 2


class UnknownSettingError(ConfigurationError):
    """A key that no setting has: a typing error would otherwise be ignored silently."""

    def __init__(self, key: str, origin: str, suggestions: Sequence[str]) -> None:
        super().__init__(key, origin, suggestions)
        self.key = key
        self.origin = origin
        """Which file or variable the key stands in."""
        self.suggestions = suggestions

    def __str__(self) -> str:
        hint = f"did you mean {' or '.join(self.suggestions)}?" if self.suggestions else "remove it."
        return f"{self.origin}: unknown setting {self.key}; {hint} `slackwater config` lists all settings"


class InvalidSettingError(ConfigurationError):
    """Values that contradict the settings' types or ranges. Values are not repeated: they may be secrets."""

    def __init__(self, problems: Sequence[tuple[str, str, str]]) -> None:
        super().__init__(problems)
        self.problems = problems
        """``(setting, origin, what is wrong)``."""

    def __str__(self) -> str:
        return "\n".join(
            f"setting {path} (from {origin}): {problem}" for path, origin, problem in self.problems
        )


class MissingSettingError(ConfigurationError):
    """A command needs a setting that has no default."""

    def __init__(self, path: str, flag: str, variable: str, purpose: str) -> None:
        super().__init__(path, flag, variable, purpose)
        self.path = path
        self.flag = flag
        self.variable = variable
        self.purpose = purpose

    def __str__(self) -> str:
        section, dot, key = self.path.rpartition(".")
        in_file = f"`{key} = …` under [{section}]" if dot else f"`{key} = …`"
        return (
            f"missing setting {self.path} ({self.purpose}): give {self.flag}, set {self.variable}, "
            f"or write {in_file} in slackwater.toml"
        )


class SettingsFileError(ConfigurationError):
    """The settings file cannot be read."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"settings file {self.path}: {self.reason}"


class TopicUnavailableError(SlackwaterError):
    """A topic cannot be read."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(topic, reason)
        self.topic = topic
        self.reason = reason

    def __str__(self) -> str:
        return f"topic {self.topic} cannot be read: {self.reason}; check the address and the topic's name"


class ServerUnreachableError(SlackwaterError):
    """A server did not answer a question."""

    def __init__(self, server: str, question: str, reason: str) -> None:
        super().__init__(server, question, reason)
        self.server = server
        """Kafka or PostgreSQL."""
        self.question = question
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.server} does not answer: {self.question}: {self.reason}; check address and permissions"


class DecisionRefusedError(SlackwaterError):
    """The facts speak against an operator's decision; nothing was recorded."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason, advice)
        self.reason = reason
        self.advice = advice

    def __str__(self) -> str:
        return f"nothing was decided: {self.reason}; {self.advice}"


class StateUnreadableError(SlackwaterError):
    """What was asked of a checkpoint's state cannot be told."""

    def __init__(self, checkpoint: str, problem: str) -> None:
        super().__init__(checkpoint, problem)
        self.checkpoint = checkpoint
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.checkpoint}: {self.problem}"
