"""The sink of a pipeline, by the kind that its outputs name."""

from collections.abc import Callable, Mapping
from typing import Final

from slackwater_protocol import Clock
from slackwater_spark.pipeline.definition import PipelineDefinition
from slackwater_spark.pipeline.settings import RunSettings
from slackwater_spark.pipeline.tables import keys_move
from slackwater_spark.sink import KafkaSink, KafkaSinkSettings, OutputTopic, Sink, SinkProbe

WithoutOutput = Callable[[], frozenset[int]]
"""Says which batches are never written: see :attr:`KafkaSinkSettings.without_output`."""


def make_sink(
    definition: PipelineDefinition,
    settings: RunSettings,
    without_output: WithoutOutput = frozenset,
    *,
    probe: SinkProbe | None = None,
    clock: Clock | None = None,
) -> Sink:
    """Makes the sink that a pipeline's outputs ask for; nothing is opened yet.

    Args:
        definition: Says where each view goes. All outputs of a pipeline are of one kind.
        settings: Says where the servers are.
        without_output: Says which batches are never written.
        probe: For tests: is told of each step.
        clock: None: the system's.
    """
    [kind] = {output.kind for output in definition.outputs}
    return _MAKERS[kind](definition, settings, without_output, probe, clock)


def kafka_sink_settings(
    definition: PipelineDefinition, settings: RunSettings, without_output: WithoutOutput = frozenset
) -> KafkaSinkSettings:
    """What the Kafka sink of a pipeline must know."""
    return KafkaSinkSettings(
        pipeline=definition.name,
        outputs=tuple(
            OutputTopic(
                output.topic,
                settings.output_partitions or output.partitions,
                keys_move=keys_move(definition.plan, number),
                view=output.view,
            )
            for number, output in enumerate(definition.outputs)
        ),
        emit=definition.emit,
        scope=definition.scope,
        kafka=settings.servers.kafka,
        replication_factor=settings.replication_factor,
        accept_changed_output=settings.accept_changed_output,
        without_output=without_output,
    )


def _kafka_sink(
    definition: PipelineDefinition,
    settings: RunSettings,
    without_output: WithoutOutput,
    probe: SinkProbe | None,
    clock: Clock | None,
) -> Sink:
    return KafkaSink(kafka_sink_settings(definition, settings, without_output), probe=probe, clock=clock)


_Maker = Callable[[PipelineDefinition, RunSettings, WithoutOutput, SinkProbe | None, Clock | None], Sink]
_MAKERS: Final[Mapping[str, _Maker]] = {"kafka": _kafka_sink}
