"""A pipeline in this process: the real planner, decoding, engine and state, without Spark and outputs."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from slackwater.engine.bucket import state_fingerprint
from slackwater.engine.documents import decode_documents, documents_by_view
from slackwater.engine.payloads import PackedPayload
from slackwater.engine.state.keeper import StateKeeper
from slackwater.engine.state.log import LogUpdate, LogWrite
from slackwater.pipeline.batch_task import (
    KnownState,
    SourceTask,
    TaskProgram,
    TaskRow,
    read_part,
    run_level,
    run_whole,
)
from slackwater.pipeline.catalogue_check import CatalogueCheck
from slackwater.pipeline.checkpoint import Checkpoint
from slackwater.pipeline.connector_check import refuse_unknown_connector
from slackwater.pipeline.definition import PipelineDefinition, stage_settings, view_inputs
from slackwater.pipeline.runner import source_options
from slackwater.pipeline.settings import RunSettings
from slackwater.pipeline.source.planner import Planner
from slackwater.protocol import Servers

Documents = dict[str, dict[str, Any]]
"""The documents of a view by their keys, both as JSON has them."""


class LocalPipeline:
    """Runs the batches of a pipeline when asked. Used by one thread.

    Args:
        definition: The pipeline, with one bucket.
        servers: Where its source is.
        folder: For the checkpoint and the indexes.
        database: The source's.
        is_connector_known: Whether anybody knows the connector's configuration.

    Raises:
        ConfigError: Nobody does, and that matters for a view.
    """

    def __init__(
        self,
        definition: PipelineDefinition,
        servers: Servers,
        folder: Path,
        database: str,
        *,
        is_connector_known: bool,
    ) -> None:
        if not is_connector_known:
            refuse_unknown_connector(definition.plan)
        settings = RunSettings(
            servers=servers, checkpoint=str(folder / "checkpoint"), source_database=database
        )
        self.views: dict[str, Documents] = {view.name: {} for view in definition.plan.views}
        self._definition = definition
        checkpoint = Checkpoint(settings.checkpoint)
        self.catalogue = CatalogueCheck(definition, database, "", checkpoint)
        options = source_options(definition, settings, 1)
        stages = replace(stage_settings(definition), is_form_known=is_connector_known)
        self._planner = Planner(options)
        self._position = self._planner.start()
        self._keeper = StateKeeper(checkpoint.store, state_fingerprint(definition.plan, stages))
        self._keeper.open("")
        program = TaskProgram(
            plan=definition.plan,
            settings=stages,
            evaluators=definition.evaluators,
            options=options,
            checkpoint=checkpoint.location,
            query_id="strange",
            index_root=str(folder / "indexes"),
        )
        self._program = pickle.dumps(program)

    def run_batches(self, is_enough: Callable[[], bool]) -> None:
        """Runs what is there, batch after batch, until there is nothing new or it is enough.

        Raises:
            SlackwaterError: What a run would end with.
        """
        while not is_enough():
            self.catalogue.check()
            end = self._planner.next(self._position, None, None)
            planned = None if end is self._position else self._planner.plan(self._position, end)
            if planned is not None:
                self._finish(self._computed(planned.tasks), end.to_json())
            elif end is self._position:
                return
            self._position = end

    def table_of(self, view: str) -> str:
        """Returns the full name of the only table of a view."""
        (found,) = (each for each in self._definition.plan.views if each.name == view)
        (table,) = {each.table.full_name for each in view_inputs(self._definition.plan, found)}
        return table

    def close(self) -> None:
        """Frees connections."""
        self.catalogue.close()
        self._planner.close()

    def _computed(self, tasks: Sequence[SourceTask]) -> list[TaskRow]:
        known, batch_id = KnownState(self._keeper.state.name), self._keeper.state.batch_id + 1
        if len(tasks) == 1:
            return run_whole(self._program, known, tasks[0])
        rows = [row for task in tasks for row in read_part(self._program, task)]
        for stages in self._definition.plan.levels:
            rows = list(run_level(self._program, known, stages, batch_id, rows))
        return rows

    def _finish(self, rows: list[TaskRow], position: dict[str, object]) -> None:
        batch_id = self._keeper.state.batch_id + 1
        writes = [row for row in rows if isinstance(row, LogWrite)]
        updates = [row for row in rows if isinstance(row, LogUpdate)]
        documents: list[PackedPayload] = [row for row in rows if isinstance(row, tuple)]
        state = self._keeper.prepare(position, writes, updates)
        payloads = documents_by_view(batch_id, documents)
        for number, view in enumerate(self._definition.plan.views):
            for chunk in decode_documents(batch_id, payloads.get(number, ())):
                for _, key, document in sorted(chunk, key=lambda each: each[0]):
                    if document is None:
                        self.views[view.name].pop(key.decode(), None)
                    else:
                        self.views[view.name][key.decode()] = msgspec.json.decode(document)
        self._keeper.adopt(state)
