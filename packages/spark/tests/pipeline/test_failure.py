import pytest

from slackwater_spark.pipeline.failure import RESTARTABLE, root_cause

TASK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage \
failure: Task 0 in stage 1.0 failed 4 times, most recent failure: Lost task 0.3 in stage 1.0 (TID 7): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 3, in read
    raise bad_input(message, "not JSON") from error
slackwater_spark.source.errors.BadInputError: bad input at topic inv.orders, partition 1, offset 7: not JSON
and a second line

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 9, in again
OtherError: later
"""

CHAINED = """Traceback (most recent call last):
  File "a.py", line 1, in f
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "b.py", line 2, in g
slackwater_spark.source.errors.BadInputError: bad input at topic t
"""


def test_the_error_a_task_raised_is_the_cause() -> None:
    assert root_cause(TASK) == (
        "BadInputError",
        "bad input at topic inv.orders, partition 1, offset 7: not JSON\nand a second line",
    )


def test_of_chained_errors_the_last_one_says_what_it_means() -> None:
    assert root_cause(CHAINED) == ("BadInputError", "bad input at topic t")


def test_without_a_python_error_the_first_line_has_to_do() -> None:
    assert root_cause("\n[SOME_CLASS] No space left on device\n\tat x.y(Z.java:1)") == (
        "StreamingQueryException",
        "[SOME_CLASS] No space left on device",
    )


HANDED_ON = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "writer.py", line 2, in __call__
    batch = document_batch(batch_id, rows.toArrow())
py4j.protocol.Py4JJavaError: An error occurred while calling o184.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.ThreadUtils$.awaitResult(ThreadUtils.scala:1)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 2.0 failed
\tat org.apache.spark.scheduler.DAGScheduler.x(DAGScheduler.scala:1)
"""


def test_what_java_told_a_call_of_the_driver_is_the_cause() -> None:
    text = (
        HANDED_ON
        + "Caused by: java.io.IOException: No space left on device\n\tat java.base/sun.x(Y.java:1)\n"
    )
    assert root_cause(text) == ("IOException", "No space left on device")


def test_a_task_s_error_behind_a_call_of_the_driver_is_the_cause() -> None:
    assert root_cause(HANDED_ON + "Caused by: " + TASK)[0] == "BadInputError"


def test_a_call_into_java_without_a_cause_says_what_it_said() -> None:
    text = HANDED_ON.partition("Caused by")[0]
    error_type, reason = root_cause(text)
    assert error_type == "Py4JJavaError"
    assert "Exception thrown in awaitResult" in reason


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("Broken pipe SQLSTATE: XXKST", "Broken pipe"),
        (" SQLSTATE: XXKST (no cause message)", "end of its stream"),
    ],
)
def test_the_end_of_the_process_that_plans_batches_is_called_so(told: str, shown: str) -> None:
    """Spark tells it as the end of a connection."""
    text = f"[STREAM_FAILED] Query [id = 1] terminated with exception: {told}\n=== Streaming Query ==="
    error_type, reason = root_cause(text)
    assert error_type == "PythonProcessEndedError"
    assert f"ended ({shown})" in reason
    assert "start the pipeline again" in reason
    assert error_type in RESTARTABLE


@pytest.mark.parametrize(
    "text",
    [
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Python worker failed to "
        "connect back. SQLSTATE: XXKST\n=== Streaming Query ===\n",
        "Python worker failed to connect back.\n=== Streaming Query ===\nIdentifier: orders [id = 1]",
    ],
    ids=["while it runs", "before its first batch"],
)
def test_a_process_that_did_not_start_in_time_is_called_so(text: str) -> None:
    """As Spark told it on a machine with a load of 22."""
    error_type, reason = root_cause(text)
    assert error_type == "PythonProcessLateError"
    assert "did not start within 10 s: the machine is too busy" in reason
    assert error_type in RESTARTABLE


def test_errors_of_tasks_and_of_java_are_no_reason_to_start_a_query_again() -> None:
    assert root_cause(TASK)[0] not in RESTARTABLE
    assert root_cause("Job aborted: Python worker failed to connect back.")[0] not in RESTARTABLE
    assert root_cause("Broken pipe\nwhile a file was written")[0] not in RESTARTABLE
    assert root_cause("Python worker failed to connect back.")[0] not in RESTARTABLE


def test_the_end_of_that_process_is_called_so_before_the_first_batch_too() -> None:
    text = "Broken pipe\n=== Streaming Query ===\nIdentifier: orders [id = 1]"
    assert root_cause(text)[0] == "PythonProcessEndedError"
