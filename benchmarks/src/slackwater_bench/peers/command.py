"""``python -m slackwater_bench peers``."""

import random
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict

import click

from slackwater.protocol import SlackwaterError
from slackwater_bench.peers.registry import PEERS, SLACKWATER, Installed, Peer, install, peers_named
from slackwater_bench.peers.results import Details, Setting, latest_runs, render, store, stored_runs
from slackwater_bench.peers.runs import BacklogOptions, LiveOptions, run_peer, setting_of
from slackwater_bench.scenario import RunContext
from slackwater_certify import CertifyError
from slackwater_lab.errors import TestingError


@click.command()
@click.argument("names", nargs=-1, metavar="[PEER]...")
@click.option(
    "--setting",
    "settings",
    multiple=True,
    type=click.Choice([str(setting) for setting in Setting]),
    help="Default: both.",
)
@click.option("--orders", default=20_000, show_default=True, help="Backlog: orders in the state.")
@click.option("--events", default=1_000_000, show_default=True, help="Backlog: change events after them.")
@click.option("--rate", default=5_000, show_default=True, help="Live: change events per second.")
@click.option("--seconds", default=45, show_default=True, help="Live: how long.")
@click.option("--order-seed", default=0, show_default=True, help="Shuffles who comes first.")
@click.option("--no-keep", is_flag=True, help="Do not write results.")
@click.option("--table", "table_only", is_flag=True, help="Only print the table of the kept results.")
def peers(
    names: tuple[str, ...],
    settings: tuple[str, ...],
    table_only: bool,
    no_keep: bool,
    order_seed: int,
    **sizes: int,
) -> None:
    """Slackwater and five other stream processors over the same change events, judged by one checker.

    Each runs by itself on fresh servers, in two settings: `backlog` (the topics are full) and `live` (a
    steady writer). A peer that cannot be installed or that fails is reported as not run, with the reason.
    """
    if not table_only:
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))  # so that nothing stays
        try:
            chosen = peers_named(names)
        except TestingError as error:
            raise click.UsageError(str(error)) from error
        backlog = BacklogOptions(orders=sizes["orders"], events=sizes["events"])
        live = LiveOptions(events_per_second=sizes["rate"], seconds=sizes["seconds"])
        wanted = [each for each in (backlog, live) if not settings or setting_of(each) in settings]
        runs = _run_all(chosen, wanted, order_seed, is_kept=not no_keep)
        if no_keep:
            click.echo(render(chosen, latest_runs(runs)))
            return
    click.echo(render(PEERS, latest_runs(stored_runs())))


def _run_all(
    chosen: Sequence[Peer],
    wanted: Sequence[BacklogOptions | LiveOptions],
    order_seed: int,
    *,
    is_kept: bool,
) -> list[Details]:
    context = RunContext.here()
    runs = []
    for options in wanted:
        setting = setting_of(options)
        for peer in random.Random(f"{order_seed} {setting}").sample(chosen, len(chosen)):
            run = measure(peer, options, context)
            runs.append(run)
            context.say(f"{peer.title}, {setting}: {run['not_run'] or run}")
            if is_kept:
                store(run, asdict(options), context.clock)
    return runs


def measure(peer: Peer, options: BacklogOptions | LiveOptions, context: RunContext) -> Details:
    """One run; what keeps a peer from running becomes the reason why it was not."""
    try:
        installed: Installed | None = None if peer.name == SLACKWATER else install(peer, context.say)
        return run_peer(peer, installed, options, context)
    except (TestingError, CertifyError, SlackwaterError) as error:
        return {"peer": peer.name, "setting": str(setting_of(options)), "not_run": str(error)}
