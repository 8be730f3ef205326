"""``slackwater state``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from slackwater.invocation import Invocation, given_flags, setting

if TYPE_CHECKING:
    from slackwater.state_target import StateTarget

SHOWN = 5


class _ShowsByDefault(click.Group):
    """``slackwater state DIR`` means ``slackwater state show DIR``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ShowsByDefault)
def state() -> None:
    """Look into a pipeline's state, or distribute it over more or fewer tasks.

    \b
    Examples:
      slackwater state pipelines/orders --checkpoint /var/lib/slackwater/orders
      slackwater state /var/lib/slackwater/orders
      slackwater state pipelines/orders --key '{"id": 5}'
      slackwater state rescale pipelines/orders --partitions 16
    """


@state.command()
@click.argument("place", metavar="DIR", type=click.Path(path_type=Path))
@setting("run.checkpoint", "--checkpoint", metavar="DIR", help="Where Spark keeps offsets and state.")
@click.option("--key", metavar="JSON", help="Show what the stages keep under this key: its columns' values.")
@click.option("--top", type=click.IntRange(min=1), default=SHOWN, show_default=True, help="Of the largest.")
@click.option("--json", "as_json", is_flag=True, help="For tools: one JSON object.")
@click.pass_context
def show(ctx: click.Context, place: Path, key: str | None, top: int, as_json: bool) -> None:
    """Show what the state holds; DIR is a pipeline or a checkpoint.

    For each stage: buckets, keys, rows of each input, what is live and what the logs take, the largest
    buckets and keys. Reads the newest committed batch from the checkpoint alone, whether the pipeline runs or
    not. It reads all of the state, with a Spark of its own on this machine.
    """
    from slackwater.output import Output
    from slackwater.state_report import key_lines, keys_json, state_json, state_lines
    from slackwater_spark.state import inspect_state, kept_rows

    output = Output()
    target = _target(ctx, place)
    wanted = None if key is None else target.key(key)
    plan = target.plan if wanted is None else target.known_plan()
    with target.session() as session:
        if wanted is not None and plan is not None:
            found = kept_rows(session, target.checkpoint, plan, wanted, buckets=target.known_buckets())
            text = keys_json(found) if as_json else None
            lines = key_lines(found)
        else:
            report = inspect_state(session, target.checkpoint, top=top)
            text = state_json(report, plan, top) if as_json else None
            lines = state_lines(report, plan, top)
    if text is not None:
        click.echo(text)
        return
    for line in lines:
        output.line(line)


@state.command()
@click.argument("place", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--partitions", type=click.IntRange(min=1), required=True, metavar="N", help="From then on.")
@setting("run.checkpoint", "--checkpoint", metavar="DIR", help="Where Spark keeps offsets and state.")
@click.pass_context
def rescale(ctx: click.Context, place: Path, partitions: int) -> None:
    """Distribute the state over N partitions, the number of tasks that each stage has.

    The pipeline must be stopped, and its last batch be finished (`slackwater run --available-now`). All state
    is written anew; what was there is compared with what is there afterwards. Interrupted, call it again with
    the same number. DIR is a pipeline or a checkpoint.
    """
    from slackwater.output import Output
    from slackwater.state_report import rescaled_line
    from slackwater_spark.state import check_rescaling
    from slackwater_spark.state import rescale as rescale_state

    output = Output()
    target = _target(ctx, place)
    buckets = target.known_buckets()
    check_rescaling(target.checkpoint, partitions, buckets)
    output.progress(f"{target.name}: starting Spark")
    with target.session() as session:
        done = rescale_state(
            session,
            target.checkpoint,
            partitions,
            buckets=buckets,
            on_progress=lambda text: output.progress(f"{target.name}: {text}"),
        )
    output.end_progress()
    output.line(f"{target.name}: {rescaled_line(done, partitions)}")


def _target(ctx: click.Context, place: Path) -> "StateTarget":
    from slackwater.state_target import state_target

    invocation: Invocation = ctx.obj
    return state_target(place, invocation.start(given_flags(ctx)))
