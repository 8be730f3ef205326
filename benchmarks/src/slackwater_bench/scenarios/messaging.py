"""The ways to make messages and a database one transaction: what each costs, and keeps."""

from dataclasses import asdict

from slackwater_bench.messaging.crashes import RECEIVED, Cell, broken_promises, crash
from slackwater_bench.messaging.receiving import measure_receiving
from slackwater_bench.messaging.sending import measure_after_pauses, measure_sending
from slackwater_bench.scenario import Measured, Parameters, RunContext
from slackwater_lab.errors import RunFailedError


def run_messaging(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    measure = measure_receiving if parameters["way"] in RECEIVED else measure_sending
    found = measure(parameters, context)
    latency = found["latency_ms"]
    return Measured(latency["p99"], found)


def run_messaging_idle(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    found = measure_after_pauses(parameters, context)
    return Measured(found["latency_ms"]["p99"], found)


def run_messaging_crashes(parameters: Parameters, context: RunContext) -> Measured:
    """One run; a way that breaks its promise has no result."""
    name = str(parameters["way"])
    cells = crash(parameters, context)
    if broken := broken_promises(name, cells):
        raise RunFailedError(f"{name} has broken its promise", "; ".join(broken))
    total = sum(cells.values(), Cell(messages=0, lost=0, repeated=0))
    return Measured(
        total.cost,
        {"total": asdict(total), "cells": {place: asdict(cell) for place, cell in cells.items()}},
    )
