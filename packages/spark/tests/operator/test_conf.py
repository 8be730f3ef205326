import inspect
import pickle
import sys

import pytest

from slackwater_engine import errors
from slackwater_engine.errors import EngineError
from slackwater_spark.errors import PipelineConfigError
from slackwater_spark.operator.conf import check_conf, required_conf, required_environment

LOCALS = "spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled"


def test_the_required_settings_pass_their_own_check() -> None:
    check_conf(required_conf())


def test_another_state_store_is_refused() -> None:
    with pytest.raises(PipelineConfigError, match=r"stateStore\.providerClass"):
        check_conf({})


def test_local_variables_in_tracebacks_are_refused() -> None:
    with pytest.raises(PipelineConfigError, match="secrets"):
        check_conf(required_conf() | {LOCALS: "true"})


def test_workers_run_the_interpreter_of_the_driver() -> None:
    assert required_environment()["PYSPARK_PYTHON"] == sys.executable


LEAVES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, EngineError) and "__str__" in vars(kind)
]


@pytest.mark.parametrize("kind", LEAVES)
def test_errors_survive_the_way_between_processes(kind: type[EngineError]) -> None:
    count = len(inspect.signature(kind).parameters)
    values = [
        ("t",) if "tuple" in str(p.annotation) else p.name
        for p in inspect.signature(kind).parameters.values()
    ]
    error = kind(*values)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(copy), str(copy), vars(copy)) == (kind, str(error), vars(error))
    assert count == len(error.args)
