"""``slackwater lease``."""

from datetime import timedelta

import click

from slackwater.client import end_lease, open_leases, renew_lease
from slackwater.command.invocation import kafka_settings, setting, start_command
from slackwater.command.output import Output, aligned, json_option, utc
from slackwater.control import LeaseStanding, LeaseState, lease_standings
from slackwater.protocol import InputError, SystemClock, commit_id, epoch_ms

_BROKERS = setting("kafka.bootstrap", "The brokers of the pipelines.")


@click.group()
def lease() -> None:
    """Show, renew and end leases, which keep views readable at one commit.

    `slackwater read --level repeatable` takes a lease on the newest commit at which all of its pipelines can
    be read. From then on, the pipelines keep that state until the lease expires or you end it here. This
    costs space: topics keep replaced documents, and lakes keep their snapshots.

    \b
    Examples:
      slackwater read pipelines/orders pipelines/stock --level repeatable --for 3600
      slackwater lease list --bootstrap localhost:9092
      slackwater read pipelines/orders --lease 4f0c2a91d3e7
      slackwater lease renew 4f0c2a91d3e7 --for 3600
      slackwater lease end 4f0c2a91d3e7

    For details see docs/reading.md.
    """


@lease.command("list")
@_BROKERS
@json_option("one JSON array")
@click.pass_context
def list_leases(ctx: click.Context, as_json: bool) -> None:
    """List the active leases in the order in which they expire.

    \b
      held     all of its pipelines keep their views readable at the commit
      taken    at least one of them has not answered yet; only running pipelines answer
      refused  at least one of them does not keep that state

    \b
    Examples:
      slackwater lease list --bootstrap localhost:9092
      slackwater lease list --json | jq -r '.[] | [.lease.id, .lease.holder] | @tsv'
    """
    kafka = kafka_settings(start_command(ctx), "where leases are kept")
    now_ms = epoch_ms(SystemClock().now())
    with open_leases(kafka) as log:
        known = [each for each in lease_standings(log.read(), now_ms) if each.state is not LeaseState.OVER]
    Output().report(known, lease_lines(known, now_ms), as_json=as_json)


@lease.command()
@_BROKERS
@click.argument("lease_id", metavar="ID")
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(min=1),
    required=True,
    help="Seconds from now until the lease expires.",
    metavar="SECONDS",
)
@click.pass_context
def renew(ctx: click.Context, lease_id: str, seconds: float) -> None:
    """Change the time at which a lease expires.

    Waits until its pipelines have agreed. If one of them does not agree, the lease is unchanged.

    \b
    Example:
      slackwater lease renew 4f0c2a91d3e7 --for 3600
    """
    kafka = kafka_settings(start_command(ctx), "where leases are kept")
    with open_leases(kafka) as log:
        found = renew_lease(log, lease_id, duration=timedelta(seconds=seconds))
    Output().line(f"lease {found.id} ends at {utc(found.expires_ms)}")


@lease.command()
@_BROKERS
@click.argument("lease_id", metavar="ID")
@click.pass_context
def end(ctx: click.Context, lease_id: str) -> None:
    """End a lease now, even if it is somebody else's: its readers find that the state is no longer kept.

    \b
    Example:
      slackwater lease end 4f0c2a91d3e7
    """
    kafka = kafka_settings(start_command(ctx), "where leases are kept")
    with open_leases(kafka) as log:
        if not end_lease(log, lease_id):
            hint = "`slackwater lease list` shows the active leases"
            raise InputError(f"there is no lease {lease_id!r}", hint)
    Output().line(f"ended: {lease_id}")


def lease_lines(leases: list[LeaseStanding], now_ms: int) -> list[str]:
    """Writes a line per lease, below a heading; a second one for each pipeline that does not hold it."""
    if not leases:
        return ["no active leases; `slackwater read --level repeatable` takes one"]
    rows = [("lease", "state", "source", "commit", "ends in", "pipelines", "holder")]
    notes = []
    for each in leases:
        found = each.lease
        left = (found.expires_ms - now_ms) / 1000
        rows.append(
            (
                found.id,
                each.state,
                found.source,
                commit_id(found.timeline, found.commit_lsn),
                f"{left:,.0f} s",
                ", ".join(found.pipelines),
                found.holder,
            )
        )
        notes += [f"{found.id}: {name} refuses it: {reason}" for name, reason in each.refusals.items()]
        notes += [f"{found.id}: {name} has not answered" for name in each.waits_for]
    return [*aligned(rows), *notes]
