"""The dashboards: a source, a pipeline, and the fleet of all of them."""

from typing import Final

from infra.observability.panels import Dashboard, Panel, Query, Variable

_SOURCE: Final = '{source=~"$source"}'
_RUN: Final = '{pipeline=~"$pipeline"}'


def _rate(metric: str, chosen: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{chosen}[$__rate_interval]))"


def _increase(metric: str, chosen: str, by: str) -> str:
    return f"sum by ({by}) (increase({metric}{chosen}[$__rate_interval]))"


def _largest(metric: str, chosen: str, by: str) -> str:
    return f"max by ({by}) ({metric}{chosen})"


def _top(expression: str) -> str:
    return f"topk(10, {expression})"


def _quantiles(metric: str, chosen: str, by: str) -> tuple[Query, ...]:
    buckets = _rate(f"{metric}_bucket", chosen, f"le, {by}")
    return tuple(
        Query(f"histogram_quantile({quantile}, {buckets})", f"p{percent} {{{{{by}}}}}")
        for quantile, percent in ((0.5, 50), (0.99, 99))
    )


def _mean(metric: str, chosen: str, by: str) -> str:
    return f"{_rate(f'{metric}_sum', chosen, by)} / {_rate(f'{metric}_count', chosen, by)}"


SOURCE: Final = Dashboard(
    uid="slackwater-source",
    title="Slackwater: source",
    description="A database's change events, from the connector to the cuts that sidecars publish.",
    variables=(Variable(label="source", metric="slackwater_frontier_lsn"),),
    rows=(
        (
            Panel(
                title="State",
                description="running is well; stalled, regressed, bad_input, misconfigured, failed are not.",
                queries=(
                    Query(
                        _largest("slackwater_state", _SOURCE, "source, state") + " == 1",
                        "{{source}} {{state}}",
                    ),
                ),
                kind="stat",
            ),
            Panel(
                title="Age of the newest commit",
                description="Rises while nobody commits, too; the heartbeat of the connector then bounds it.",
                queries=(
                    Query(f"min by (source) (slackwater_newest_commit_age_seconds{_SOURCE})", "{{source}}"),
                ),
                unit="s",
            ),
            Panel(
                title="From END to cut",
                description="What the sidecar takes from reading an END to publishing its commit.",
                queries=_quantiles("slackwater_publication_delay_seconds", _SOURCE, "source"),
                unit="s",
            ),
        ),
        (
            Panel(
                title="Records, change events, transactions",
                description="Of two sidecars of a source both read, and mostly one publishes.",
                queries=(
                    Query(_rate("slackwater_records_read_total", _SOURCE, "source"), "records {{source}}"),
                    Query(_rate("slackwater_events_total", _SOURCE, "source"), "events {{source}}"),
                    Query(
                        _rate("slackwater_transactions_total", _SOURCE, "source"), "transactions {{source}}"
                    ),
                ),
                unit="cps",
            ),
            Panel(
                title="Cuts",
                description="Publications, of cuts and of markers of partitions that are ahead of them.",
                queries=(
                    Query(_rate("slackwater_cuts_total", _SOURCE, "source"), "cuts {{source}}"),
                    Query(
                        _rate("slackwater_ahead_publications_total", _SOURCE, "source"), "markers {{source}}"
                    ),
                ),
                unit="cps",
            ),
            Panel(
                title="Writing a cut",
                description="To the cut log and to Redis.",
                queries=_quantiles("slackwater_publication_duration_seconds", _SOURCE, "source"),
                unit="s",
            ),
        ),
        (
            Panel(
                title="Transactions that are waited for",
                description="Open for longer than the threshold; `slackwater status` names them.",
                queries=(
                    Query(_largest("slackwater_open_transactions", _SOURCE, "source"), "open {{source}}"),
                    Query(
                        _largest("slackwater_queued_transactions", _SOURCE, "source"),
                        "above the cut {{source}}",
                    ),
                    Query(_largest("slackwater_obstacles", _SOURCE, "source"), "obstacles {{source}}"),
                ),
            ),
            Panel(
                title="Age of the oldest open transaction",
                description="Long transactions of the database count, too.",
                queries=(
                    Query(
                        _largest("slackwater_oldest_open_transaction_age_seconds", _SOURCE, "source"),
                        "{{source}}",
                    ),
                ),
                unit="s",
            ),
            Panel(
                title="Held back by open Kafka transactions",
                description="Offsets that cannot be read. Above 0 for longer than a batch: its writer hangs.",
                queries=(Query(_largest("slackwater_held_back_offsets", _SOURCE, "source"), "{{source}}"),),
            ),
        ),
        (
            Panel(
                title="Trouble with Kafka and Redis",
                description="1 while it does not answer.",
                queries=(
                    Query(
                        _largest("slackwater_dependency_trouble", _SOURCE, "source, dependency"),
                        "{{dependency}} {{source}}",
                    ),
                    Query(
                        _increase("slackwater_redis_corrections_total", _SOURCE, "source"),
                        "Redis corrected {{source}}",
                    ),
                ),
            ),
            Panel(
                title="Partitions",
                description="Paused ones are far ahead of the others.",
                queries=(
                    Query(_largest("slackwater_partitions_read", _SOURCE, "source"), "read {{source}}"),
                    Query(_largest("slackwater_partitions_paused", _SOURCE, "source"), "paused {{source}}"),
                ),
            ),
            Panel(
                title="Size of cuts",
                description="Encoded; large ones mean many partitions or many transactions in one cut.",
                queries=(Query(_mean("slackwater_cut_bytes", _SOURCE, "source"), "{{source}}"),),
                unit="bytes",
            ),
        ),
    ),
)

PIPELINE: Final = Dashboard(
    uid="slackwater-pipeline",
    title="Slackwater: pipeline",
    description="A run of a pipeline, from the cuts of its source to the visibility of its documents.",
    variables=(Variable(label="pipeline", metric="slackwater_run_start_time_seconds"),),
    rows=(
        (
            Panel(
                title="Delay, from commit to visible",
                description="Of the newest transaction of each batch.",
                queries=_quantiles("slackwater_run_delay_seconds", _RUN, "pipeline"),
                unit="s",
            ),
            Panel(
                title="Hops of the delay",
                description="Means; they add up to the mean delay, but for clocks that differ.",
                queries=(
                    Query(
                        _mean("slackwater_run_hop_delay_seconds", _RUN, "pipeline, hop"),
                        "{{hop}} {{pipeline}}",
                    ),
                ),
                unit="s",
                is_stacked=True,
            ),
            Panel(
                title="Age of the newest commit shown",
                description="Rises, too, while nobody commits.",
                queries=(Query(f"slackwater_run_newest_commit_age_seconds{_RUN}", "{{pipeline}}"),),
                unit="s",
            ),
            Panel(
                title="Time since the last step",
                description="Rises while a batch runs in Spark, and while the run stands still.",
                queries=(Query(f"slackwater_run_last_turn_age_seconds{_RUN}", "{{pipeline}}"),),
                unit="s",
            ),
        ),
        (
            Panel(
                title="Change events and documents",
                description="What is read, and what is written; deletes are documents, too.",
                queries=(
                    Query(_rate("slackwater_run_events_total", _RUN, "pipeline"), "events {{pipeline}}"),
                    Query(
                        _rate("slackwater_run_documents_total", _RUN, "pipeline"), "documents {{pipeline}}"
                    ),
                    Query(_rate("slackwater_run_deletes_total", _RUN, "pipeline"), "deletes {{pipeline}}"),
                ),
                unit="cps",
            ),
            Panel(
                title="Batches and transactions",
                description="Few large batches are a backlog that is worked off.",
                queries=(
                    Query(_rate("slackwater_run_batches_total", _RUN, "pipeline"), "batches {{pipeline}}"),
                    Query(
                        _rate("slackwater_run_transactions_total", _RUN, "pipeline"),
                        "transactions {{pipeline}}",
                    ),
                ),
                unit="cps",
            ),
            Panel(
                title="Duration of a batch",
                description="From choosing it to its visibility.",
                queries=_quantiles("slackwater_run_batch_duration_seconds", _RUN, "pipeline"),
                unit="s",
            ),
        ),
        (
            Panel(
                title="Time by part",
                description="Seconds per second: how busy the run is, and with what.",
                queries=(
                    Query(
                        _rate("slackwater_run_part_seconds_total", _RUN, "pipeline, part"),
                        "{{part}} {{pipeline}}",
                    ),
                ),
                is_stacked=True,
            ),
            Panel(
                title="Time by stage",
                description="Of all tasks, added up; `slackwater explain` shows the stages.",
                queries=(
                    Query(
                        _rate("slackwater_run_stage_seconds_total", _RUN, "pipeline, stage"),
                        "stage {{stage}} {{pipeline}}",
                    ),
                ),
                is_stacked=True,
            ),
            Panel(
                title="State",
                description="What each stage keeps, before compression.",
                queries=(Query(f"slackwater_run_state_bytes{_RUN}", "stage {{stage}} {{pipeline}}"),),
                unit="bytes",
                is_stacked=True,
            ),
        ),
        (
            Panel(
                title="Restarts in an hour",
                description="More than a deployment explains: read the log of the run.",
                queries=(Query(f"changes(slackwater_run_start_time_seconds{_RUN}[1h])", "{{pipeline}}"),),
            ),
            Panel(
                title="Warnings and errors",
                description="Records of the log of the run.",
                queries=(
                    Query(
                        _increase("slackwater_run_log_records_total", _RUN, "pipeline, level"),
                        "{{level}} {{pipeline}}",
                    ),
                ),
            ),
            Panel(
                title="Batches whose commit was not answered",
                description="The output held them already when they were looked for: nothing was repeated.",
                queries=(
                    Query(
                        _increase("slackwater_run_covered_batches_total", _RUN, "pipeline"),
                        "{{pipeline}}",
                    ),
                ),
            ),
        ),
    ),
)

FLEET: Final = Dashboard(
    uid="slackwater-fleet",
    title="Slackwater: fleet",
    description="All sources, pipelines and views of a cluster, as the control plane sees them.",
    variables=(),
    rows=(
        (
            Panel(
                title="Pipelines",
                description="By state; failed and vanished ones do not run.",
                queries=(Query("sum by (state) (slackwater_pipelines)", "{{state}}"),),
                kind="stat",
            ),
            Panel(
                title="Who makes views late",
                description="`slackwater delay` names them, and says what helps.",
                queries=(Query("sum by (kind) (slackwater_culprits)", "{{kind}}"),),
                kind="stat",
            ),
            Panel(
                title="States of sources",
                description="running is well.",
                queries=(
                    Query("count by (state) (max by (source, state) (slackwater_state) == 1)", "{{state}}"),
                ),
                kind="stat",
            ),
        ),
        (
            Panel(
                title="Latest views",
                description="By how much a view's newest commit is older than that of its database's cut.",
                queries=(Query(_top("slackwater_view_delay_seconds"), "{{pipeline}}/{{view}}"),),
                unit="s",
            ),
            Panel(
                title="Slowest hops",
                description="What one pipeline, sidecar or connector adds.",
                queries=(Query(_top("slackwater_hop_delay_seconds"), "{{kind}} {{name}}"),),
                unit="s",
            ),
        ),
        (
            Panel(
                title="Change events by pipeline",
                description="In visible batches.",
                queries=(
                    Query(
                        _top(_rate("slackwater_pipeline_events_total", "", "pipeline")),
                        "{{pipeline}}",
                    ),
                ),
                unit="cps",
            ),
            Panel(
                title="Documents by pipeline",
                description="Deletes included.",
                queries=(
                    Query(
                        _top(_rate("slackwater_pipeline_documents_total", "", "pipeline")),
                        "{{pipeline}}",
                    ),
                ),
                unit="cps",
            ),
        ),
        (
            Panel(
                title="State by pipeline",
                description="Before compression.",
                queries=(Query(_top("slackwater_state_bytes"), "{{pipeline}}"),),
                unit="bytes",
                is_stacked=True,
            ),
            Panel(
                title="Leases",
                description="Of readers; many that are taken keep many states readable.",
                queries=(Query("sum by (state) (slackwater_leases)", "{{state}}"),),
            ),
        ),
    ),
)

DASHBOARDS: Final = {"source": SOURCE, "pipeline": PIPELINE, "fleet": FLEET}
"""By the name of the file."""
