"""``slackwater sidecar``, which is also ``slackwater-sidecar``."""

import threading
import time
from collections.abc import Callable
from dataclasses import fields
from importlib.metadata import version

import click

from slackwater.cli.control.server import control_plane
from slackwater.command.boundary import general_options, options
from slackwater.command.invocation import redis_settings, servers, setting, sources_of, start_command
from slackwater.command.listening import http_settings
from slackwater.command.output import Output
from slackwater.observe.stopping import stop_on_signals
from slackwater.observe.telemetry import sending_telemetry
from slackwater.protocol import SourceTopics
from slackwater.settings.model import Settings, SidecarOptions, SourceSection
from slackwater_sidecar.run import run_sidecars
from slackwater_sidecar.settings import SidecarSettings
from slackwater_sidecar.status import SidecarStatus, format_status

_NEWS_SECONDS = 60.0
"""The time between two lines of a source whose state stays the same."""

_HELP = """Determine up to which commit all topics of a source are complete, and publish it.

Follows the source's data topics and its transaction topic, determines which transactions are complete, and
publishes cuts and markers to the topic NAME.slackwater.cuts, which keeps them, and to Redis, where pipelines
look for them. Runs until SIGTERM or Ctrl-C, and then stops within two seconds. Several sidecars may run for
one source. A new sidecar resumes from the end of the topic.

The connector needs provide.transaction.metadata=true. To detect when an initial snapshot is complete, it also
needs notification.enabled.channels=sink with notification.sink.topic.name=NAME.notifications.

\b
Examples:
  slackwater sidecar --source inv --bootstrap localhost:9092 --redis-url redis://localhost:6379
  slackwater sidecar --source inv --source crm --http 127.0.0.1:8085        the rest from slackwater.toml
  SLACKWATER_SOURCE=inv SLACKWATER_BOOTSTRAP=... SLACKWATER_REDIS_URL=... slackwater sidecar

One process can follow several sources. Set what differs between them in the settings file:

\b
  sources = ["inv", "crm"]
  [sidecar.of.crm]
  tables = ["public.customers"]
  open_after = 60

With --control 127.0.0.1:8086, the sidecar also serves the control plane: a page that shows the sources,
pipelines and views of the whole cluster, and an API for programs (docs/control-plane.md).

If something is wrong with a source, `slackwater doctor --source NAME` shows the cause and the remedy.
Passwords and TLS are settings under kafka. and redis. (see `slackwater config`). For details see
docs/sidecar.md (how it decides) and docs/observability.md (its metrics).
"""

_options = options(
    click.option(
        "--source", "sources", multiple=True, metavar="NAME", help="A connector's topic.prefix; repeatable."
    ),
    setting("kafka.bootstrap", "The brokers that Debezium writes to."),
    setting("redis.url", "redis://host:port, for cuts and markers."),
    setting("timeline", "Raise it when LSNs start over.  [default: 1]"),
    setting("connect.url", "Kafka Connect, to watch the connector."),
    setting("sidecar.http", "Serve /metrics, /healthz, /readyz and /status.", "--http", metavar="HOST:PORT"),
    setting("control.listen", "Serve the control plane's page and API.", "--control", metavar="HOST:PORT"),
    setting("sidecar.evidence", "counts, overtaken or offsets.", "--evidence", metavar="TABLE=KIND,…"),
    setting("sidecar.topics", "Tables with renamed topics.", "--topics", metavar="TABLE=TOPIC,…"),
    setting("sidecar.transaction_topic", "Topic with BEGIN and END.", "--transaction-topic", metavar="TOPIC"),
    setting(
        "sidecar.barrier_interval",
        "All pipelines end a batch this often; 0: never.  [default: 1]",
        "--barrier-interval",
        type=float,
        metavar="SECONDS",
    ),
    setting("sidecar.workers", "Processes per source.  [default: 1]", "--workers", type=int, metavar="N"),
)


def _command(call: str) -> click.Command:
    """Makes the command, with the name by which it is called in its help text."""

    def run(ctx: click.Context, sources: tuple[str, ...]) -> None:
        ctx.exit(follow(start_command(ctx, {"sources": ",".join(sources) or None})))

    help_text = _HELP.replace("slackwater sidecar", call)
    return click.command("sidecar", help=help_text)(_options(click.pass_context(run)))


sidecar = _command("slackwater sidecar")
alone = general_options(_command("slackwater-sidecar"))
"""The same command as a program of its own: the general options and the version are its own, too."""
click.version_option(version("slackwater-sidecar"), message="slackwater-sidecar %(version)s")(alone)


def follow(settings: Settings) -> int:
    """Follows the sources of the settings until a signal comes; returns the exit code.

    Raises:
        CommandConfigError: a setting is missing.
        SlackwaterError: see :func:`slackwater_sidecar.run_sidecars`.
    """
    output = Output()
    redis_settings(settings, "where to publish")
    followed = [sidecar_settings(settings, source) for source in sources_of(settings)]
    with (
        control_plane(settings) as plane,
        sending_telemetry(settings.telemetry, "sidecar") as telemetry,
        stop_on_signals("the sidecar") as stop,
    ):
        if plane is not None:
            output.line(f"control plane: {plane.address}")
        try:
            run_sidecars(
                followed,
                stop.event,
                _shown(output, many=len(followed) > 1),
                telemetry=telemetry,
                http=http_settings("sidecar.http", settings.sidecar.http, settings.http),
                on_http=lambda address: output.line(f"answering at {address}"),
            )
        finally:
            output.end_progress()
    return stop.exit_code


def _shown(output: Output, *, many: bool) -> Callable[[SidecarStatus], None]:
    """Shows one source in a changing line of the terminal.

    Several sources, and one whose output is no terminal, get a line when their state changes, and one a
    minute. Called by the threads of the sources.
    """
    turn, told = threading.Lock(), dict[str, tuple[object, float]]()

    def show(status: SidecarStatus) -> None:
        with turn:
            if output.is_terminal and not many:
                output.progress(format_status(status))
                return
            state, now = (status.state, status.detail, status.lsn == 0), time.monotonic()
            last, at = told.get(status.source, (None, now))
            if state != last or now - at >= _NEWS_SECONDS:
                told[status.source] = state, now
                output.line(format_status(status))

    return show


def sidecar_settings(settings: Settings, source: str) -> SidecarSettings:
    """Returns what a sidecar needs for one source.

    Raises:
        CommandConfigError: brokers were not given.
    """
    sidecar = settings.sidecar
    own = sidecar.of.get(source, SourceSection())
    options = {each.name: getattr(sidecar, each.name) for each in fields(SidecarOptions)}
    differs = {each.name: getattr(own, each.name) for each in fields(own) if each.name in options}
    options |= {name: value for name, value in differs.items() if value is not None}
    return SidecarSettings(
        **options | {"tables": own.tables or sidecar.tables},
        source=source,
        servers=servers(settings, "where its topics are"),
        topics=SourceTopics(
            source,
            sidecar.topics if own.topics is None else own.topics,
            own.transaction_topic or sidecar.transaction_topic,
            own.notification_topic or sidecar.notification_topic,
        ),
        timeline=own.timeline or settings.timeline,
        replication_factor=settings.kafka.replication_factor,
        connect_url=settings.connect.url,
        database_url=settings.postgres.url,
    )
