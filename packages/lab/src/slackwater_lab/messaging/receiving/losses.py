"""Members that are killed and stopped at random moments, again and again."""

import os
import random
from signal import SIGSTOP

from slackwater_lab.errors import RunFailedError
from slackwater_lab.messaging.receiving.crash import IMPATIENT, Servers, finish_beside
from slackwater_lab.messaging.receiving.ways import Twin, Way
from slackwater_lab.messaging.receiving.world import Verdict

_ITEMS = 200
"""Written in each round."""


def receive_through_deaths(way: Way | Twin | None, servers: Servers, *, kills: int, seed: int) -> Verdict:
    """Kills a member after a drawn time, again and again; every fourth one is stopped until another is done.

    Raises:
        RunFailedError: A member ended by itself.
    """
    world, rng = servers.world(way), random.Random(seed)
    for number in range(kills):
        world.write(range(number * _ITEMS, (number + 1) * _ITEMS))
        member = world.start(options=IMPATIENT)
        member.join(rng.uniform(0.5, 2.5))
        if member.exitcode is not None or member.pid is None:
            raise RunFailedError(str(way), f"the member ended with {member.exitcode} before it was killed")
        if number % 4 == 3:
            os.kill(member.pid, SIGSTOP)
            finish_beside(world, member)
        else:
            member.kill()
            member.join()
    world.finish()
    return world.judge()
