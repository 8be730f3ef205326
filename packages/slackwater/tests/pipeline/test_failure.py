from slackwater.pipeline.jvm import is_cancelled, root_cause

TASK = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, \
most recent failure: Lost task 0.3 in stage 1.0 (TID 7): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 3, in read
    raise bad_input(message, "not JSON") from error
slackwater.pipeline.errors.BadInputError: bad input at topic inv.orders, partition 1, offset 7: not JSON
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
slackwater.pipeline.errors.BadInputError: bad input at topic t
"""


def test_the_error_a_task_raised_is_the_cause() -> None:
    assert root_cause(TASK) == (
        "BadInputError",
        "bad input at topic inv.orders, partition 1, offset 7: not JSON\nand a second line",
    )


def test_of_chained_errors_the_last_one_says_what_it_means() -> None:
    assert root_cause(CHAINED) == ("BadInputError", "bad input at topic t")


TOLD = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 2.0 failed 4 times
\tat org.apache.spark.scheduler.DAGScheduler.x(DAGScheduler.scala:1)
"""


def test_what_java_says_is_behind_it_is_the_cause() -> None:
    text = (
        TOLD
        + "Caused by: org.apache.spark.SparkException: Exception thrown in awaitResult\n"
        + "\tat org.apache.spark.util.ThreadUtils$.awaitResult(ThreadUtils.scala:1)\n"
        + "Caused by: java.io.IOException: No space left on device\n\tat java.base/sun.x(Y.java:1)\n"
        + "Caused by: java.io.EOFException\n\t... 22 more\n"
    )
    assert root_cause(text) == ("IOException", "No space left on device")


def test_a_task_s_error_behind_what_java_says_is_the_cause() -> None:
    assert root_cause(TOLD + "Caused by: " + TASK)[0] == "BadInputError"


def test_a_call_into_java_without_a_cause_says_what_it_said() -> None:
    assert root_cause(TOLD) == (
        "SparkException",
        "Job aborted due to stage failure: Task 0 in stage 2.0 failed 4 times",
    )


def test_without_any_error_the_first_line_has_to_do() -> None:
    assert root_cause("\nAnswer from Java side is empty\n") == (
        "SparkError",
        "Answer from Java side is empty",
    )


def test_what_spark_adds_to_a_task_s_message_is_left_out() -> None:
    text = TASK.replace("and a second line", "and a second line\n SQLSTATE: 38000")
    assert root_cause(text)[1].endswith("and a second line")


def test_the_end_of_a_process_that_computes_batches_is_called_so() -> None:
    """As Spark told it of a worker that was killed four times."""
    ended = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting"
    error_type, reason = root_cause(f"{TOLD}Caused by: {ended}\nCaused by: java.io.EOFException\n")
    assert error_type == "PythonProcessEndedError"
    assert "it was killed, or ran out of memory" in reason
    assert "start the pipeline again" in reason


def test_only_a_batch_that_somebody_cancelled_is_cancelled() -> None:
    text = TOLD.replace("Job aborted", "[SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled job tags")
    assert is_cancelled(text)
    assert not is_cancelled(TOLD)
    assert not is_cancelled(TASK.replace("not JSON", "[SPARK_JOB_CANCELLED]"))
