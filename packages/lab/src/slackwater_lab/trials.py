"""Trials of lists of rights: a role works with a list, and is seen to fail without any one of its lines."""

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException

from slackwater.protocol import KafkaSettings, SlackwaterError
from slackwater.protocol.rights import Right
from slackwater_lab.errors import ProgramEndedError, WorkRefusedError
from slackwater_lab.programs import Program, slackwater_command
from slackwater_lab.secured_servers import SecuredServers

_log = logging.getLogger(__name__)

_PATIENCE = 600.0
_IMPATIENCE = 60.0
"""The patience where a line is omitted: what is silently refused never arrives."""
_REFUSALS = ("authorization failed", "not authorized", "not allowed", "authorizationexception")


_FAILURES = (
    KafkaException,
    WorkRefusedError,
    SlackwaterError,
    ProgramEndedError,
)


@dataclass(frozen=True, slots=True)
class World:
    """Servers, and who comes to them."""

    servers: SecuredServers
    folder: Path
    running: ExitStack
    """Ends what trials have started, when all of them are over."""
    user: str
    """Who is tried."""
    patience: float
    """How long work may take, in seconds: what was not done by then lacks something."""
    name: str = field(default_factory=lambda: f"n{uuid.uuid4().hex[:8]}")
    """Of whatever a trial makes; no other trial has it."""

    @property
    def kafka(self) -> KafkaSettings:
        return KafkaSettings(
            self.servers.kafka.bootstrap_for("scram"), self.servers.options(self.user, "scram")
        )

    @property
    def plain(self) -> KafkaSettings:
        """As somebody who may do everything."""
        return KafkaSettings(self.servers.kafka.bootstrap)

    def forget(self, topic: str) -> None:
        """Removes a topic that all trials share."""
        admin = self.servers.admin
        if topic in admin.list_topics(timeout=_PATIENCE).topics:
            admin.delete_topics([topic])[topic].result(_PATIENCE)
        while topic in admin.list_topics(timeout=_PATIENCE).topics:
            pass

    @contextmanager
    def program(self, *arguments: str, **settings: str) -> Iterator[Program]:
        """Runs a command as the user until the end of the block, in a process of its own.

        Settings have the names of their variables without ``SLACKWATER_``.
        """
        made = Program(f"p{uuid.uuid4().hex[:8]}", lambda: slackwater_command(*arguments), self.folder)
        environment = self.servers.environment(self.user, "scram")
        environment |= {f"SLACKWATER_{name}": value for name, value in settings.items()}
        made.start(folder=self.folder, environment=environment)
        try:
            yield made
        finally:
            made.stop()


def check_output(output: str) -> None:
    """Does nothing if nothing says that something is not allowed.

    Raises:
        WorkRefusedError: A line does.
    """
    for line in output.splitlines():
        if any(each in line.lower() for each in _REFUSALS):
            raise WorkRefusedError(line)


@dataclass(frozen=True, slots=True)
class Trial:
    """What a role does with names that nobody has used, and the rights that it needs for it."""

    rights: Sequence[Right]
    work: Callable[[], object]
    """Raises one of the errors of the product, or :class:`WorkRefusedError`, if it cannot be done."""
    is_tried: Callable[[Right], bool] = lambda _: True
    """Which lines are left out; the others were tried elsewhere."""


def superfluous(make: Callable[[float], Trial], servers: SecuredServers, user: str) -> list[Right]:
    """Returns the rights without which a role can still do its work.

    With all of them the work has to succeed before and after, so that it fails for no other reason. The trial
    is made again for each line that is left out, with some patience; the lines keep their places.

    Raises:
        WorkRefusedError: The work cannot be done with all of them; or another error of the product.
    """

    def work(without: int | None) -> None:
        trial = make(_PATIENCE if without is None else _IMPATIENCE)
        servers.grant(user, [right for place, right in enumerate(trial.rights) if place != without])
        trial.work()

    tried, found = make(_PATIENCE), list[Right]()
    work(None)
    for place, right in enumerate(tried.rights):
        if tried.is_tried(right):
            try:
                work(place)
            except _FAILURES as error:
                _log.info("without %s: %s", right, error)
            else:
                found.append(right)
    work(None)
    return found
