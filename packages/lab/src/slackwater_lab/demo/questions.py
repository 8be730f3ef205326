"""The last screen of the demo: what the control plane says of the pipeline and its next revision."""

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

from slackwater.cli.commands.explain import sharing_lines
from slackwater.cli.commands.topology import delay_lines, snapshot_lines
from slackwater.cli.pipelines import read_snapshots, read_topology, topology_lines
from slackwater.client import ComparedView, TopicOutput, compare_views
from slackwater.control import find_equal_stages, measure_delays
from slackwater.protocol import Clock, KafkaSettings, SlackwaterError, epoch_ms


def write_next_revision(pipeline: Path, folder: Path, topic: str) -> Path:
    """Copies a pipeline's folder and makes it the next revision, which publishes beside the first one.

    Args:
        pipeline: Its folder.
        folder: Where the copy goes; it must not exist.
        topic: The output topic of the copy.

    Returns:
        The copy's folder.
    """
    shutil.copytree(pipeline, folder)
    file = folder / "pipeline.toml"
    lines = file.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not re.match(r"\s*(revision|topic)\s*=", line)]
    output = next((number for number, line in enumerate(kept) if line.strip() == "[output]"), None)
    head = ["revision = 2", *kept]
    if output is None:
        head += ["[output]", f'topic = "{topic}"']
    else:
        head.insert(output + 2, f'topic = "{topic}"')
    file.write_text("\n".join(head) + "\n", encoding="utf-8")
    return folder


def newest_lsn(kafka: KafkaSettings, pipeline: str) -> int:
    """Returns the newest commit in a pipeline's topics; 0: there is none yet, or the topics are not there."""
    with closing(TopicOutput(kafka, pipeline)) as output:
        try:
            newest = output.newest()
        except SlackwaterError:  # nobody has made the topics yet
            return 0
    return 0 if newest is None else newest.position.lsn


def answers(kafka: KafkaSettings, old: tuple[str, str], new: tuple[str, str], clock: Clock) -> Iterator[str]:
    """Yields the lines of the last screen.

    Args:
        kafka: The brokers.
        old: The pipeline and its output topic.
        new: Its next revision and its topic.
        clock: The time.
    """
    topology = read_topology(kafka, epoch_ms(clock.now()))
    yield from _titled("How is everything connected?  (slackwater topology)", topology_lines(topology))
    snapshots = snapshot_lines(read_snapshots(kafka, topology))
    yield from _titled("What does a consistent query see?  (slackwater snapshots)", snapshots)
    delays = delay_lines(measure_delays(topology))
    yield from _titled("How late is each view, and which component delays it?  (slackwater delay)", delays)
    compared = [_compared(kafka, old, new)]
    yield from _titled("How is data revised?  (slackwater revise compare)", compared)
    twice = list(sharing_lines(find_equal_stages(topology)))
    yield from _titled("What is computed more than once?  (slackwater explain --sharing)", twice)


def _compared(kafka: KafkaSettings, old: tuple[str, str], new: tuple[str, str]) -> str:
    with ExitStack() as opened:
        here, there = (
            ComparedView(opened.enter_context(closing(TopicOutput(kafka, pipeline))), topic)
            for pipeline, topic in (old, new)
        )
        at, found = compare_views(here, there)
    return (
        f"{old[0]} and {new[0]} at {at}: {found.equal:,} documents equal, {found.different:,} different, "
        f"{found.only_old + found.only_new:,} only in one of them"
    )


def _titled(title: str, lines: list[str]) -> Iterator[str]:
    yield ""
    yield title
    yield from (f"  {line}".rstrip() for line in lines)
