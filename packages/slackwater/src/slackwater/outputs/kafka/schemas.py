"""Registers the schemas of a pipeline's outputs, and determines how their records begin."""

from dataclasses import replace

from slackwater.kafka.registry import (
    RegistryRefusedError,
    SubjectRegistry,
    subject,
    wire_header,
)
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic, RecordBegin
from slackwater.pipeline.errors import OutputRefusedError
from slackwater.protocol import ConfigError


def with_schema_ids(settings: KafkaSinkSettings) -> KafkaSinkSettings:
    """Registers the schemas of all outputs; returns settings whose outputs have the beginnings of records.

    The ids are valid for the entire run, so none of its batches needs the registry.

    Raises:
        ConfigError: There is no registry, or it rejects our credentials.
        OutputRefusedError: It rejects a schema.
        RegistryUnavailableError: It does not answer.
    """
    concerned = [output for output in settings.outputs if _has_schema(output)]
    if not concerned:
        return settings
    if settings.registry is None:
        raise ConfigError(
            f"pipeline {settings.pipeline!r} publishes topic {concerned[0].name!r} with a schema, but no "
            "schema registry is configured",
            "set registry.url (SLACKWATER_REGISTRY_URL); `slackwater config` shows it",
        )
    registry = SubjectRegistry(settings.registry)
    try:
        outputs = (_with_ids(settings.pipeline, output, registry) for output in settings.outputs)
        return replace(settings, outputs=tuple(outputs))
    except OutputRefusedError:
        raise
    except ConfigError as error:
        raise ConfigError(f"pipeline {settings.pipeline!r}: {error}") from error


def _has_schema(output: OutputTopic) -> bool:
    form = output.form
    return form is not None and not (form.value_schema is None and form.key_schema is None)


def _with_ids(pipeline: str, output: OutputTopic, registry: SubjectRegistry) -> OutputTopic:
    if output.form is None:
        return output
    begins = []
    for schema, of_keys in ((output.form.key_schema, True), (output.form.value_schema, False)):
        if schema is None:
            begins.append(b"")
            continue
        try:
            begins.append(wire_header(registry.register(subject(output.name, of_keys=of_keys), schema)))
        except RegistryRefusedError as error:
            what = f"the schema of view {output.view or output.name!r}"
            raise OutputRefusedError(pipeline, what, error.reason, error.hint) from error
    return replace(output, begin=RecordBegin(*begins))
