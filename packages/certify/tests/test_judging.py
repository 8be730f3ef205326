"""Every way of being wrong is built into an otherwise right output and found; a right one is clean."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from slackwater_certify import Certificate, Mode, OutputRecords, Specification, load_specification, report
from slackwater_certify.certifier import judge
from slackwater_certify.errors import CertifyConfigError
from slackwater_certify.output import OF_ANOTHER, OffsetRange, Output
from slackwater_certify.view import View
from slackwater_lab.fakes.certified import RightOutput, Row, SourceLog, line, order, write_specification

Judge = Callable[..., Certificate]
JudgeBy = Callable[[Specification, SourceLog, RightOutput], Certificate]

FIRST, SECOND, THIRD, FOURTH = range(4)


@pytest.fixture
def log() -> SourceLog:
    """Two orders; a line moves from one to the other; the second order is deleted in the end."""
    log = SourceLog()
    log.snapshot([("orders", order(1, "1.50")), ("lines", line(11, 1, "1.50"))])
    log.commit(
        ("orders", 2, order(2, "3.00")),
        ("lines", 21, line(21, 2, "1.00")),
        ("lines", 22, line(22, 2, "2.00")),
    )
    log.commit(
        ("lines", 22, line(22, 1, "2.00")), ("orders", 1, order(1, "3.50")), ("orders", 2, order(2, "1.00"))
    )
    log.commit(("orders", 1, order(1, "6.50")), ("lines", 12, line(12, 1, "3.00")))
    log.commit(("orders", 2, None), ("lines", 21, None))
    return log


@pytest.fixture
def output(log: SourceLog) -> RightOutput:
    return RightOutput.publish(log)


def counts(certificate: Certificate) -> dict[str, int]:
    """What was found, by the certificate's fields."""
    fields = (
        "torn", "wrong_lsn", "order_violations", "lost", "repeated", "uncovered", "inconsistent_states",
        "final_differences", "history_differences", "invariant_violations",
    )  # fmt: skip
    return {name: count for name in fields if (count := getattr(certificate, name))}


def lsn(log: SourceLog, number: int) -> int:
    return log.commits[number][0]


def without_a_line(output: RightOutput, position: int) -> None:
    document = output.outputs[position].document
    assert document is not None
    output.change(position, document={**document, "lines": document["lines"][:-1]})


@pytest.mark.parametrize("per_batch", [1, 2, 4])
@pytest.mark.parametrize("claims", [True, False])
def test_a_right_output_is_clean(judged: Judge, log: SourceLog, per_batch: int, claims: bool) -> None:
    output = RightOutput.publish(log, per_batch=per_batch)
    certificate = judged(log, output if claims else output.without_claims(), mode=Mode.BOTH)
    assert counts(certificate) == {}
    assert certificate.is_clean
    assert certificate.transactions == 4
    assert certificate.outputs == len(output.outputs)


def with_one_of_another_output(output: RightOutput, log: SourceLog) -> RightOutput:
    """The last commit has a record of another view in the same topic."""
    (partition, offset), last = output.outputs[-1].place, lsn(log, FOURTH)
    other = Output((partition, offset + 1), 1_000_100, lsn=last, problem=OF_ANOTHER)
    (each,) = output.commits[FOURTH].ranges
    ranges = (OffsetRange(partition, each.count + 1, each.first, offset + 1),)
    output.commits[FOURTH] = replace(output.commits[FOURTH], ranges=ranges)
    output.outputs.append(other)
    return output


@pytest.mark.parametrize("claims", [True, False])
def test_records_of_other_outputs_of_the_topic_are_counted_and_not_judged(
    judged: Judge, log: SourceLog, output: RightOutput, claims: bool
) -> None:
    own = len(output.outputs)
    both = with_one_of_another_output(output, log)
    certificate = judged(log, both if claims else both.without_claims(), mode=Mode.BOTH)
    assert (counts(certificate), certificate.outputs) == ({}, own)


def test_a_missing_record_of_another_output_is_noticed_by_the_commit_record(
    judged: Judge, log: SourceLog, output: RightOutput
) -> None:
    with_one_of_another_output(output, log).outputs.pop()
    assert counts(judged(log, output)) == {"lost": 1}


@pytest.mark.parametrize("claims", [True, False])
def test_half_a_transaction_is_torn(judged: Judge, log: SourceLog, output: RightOutput, claims: bool) -> None:
    without_a_line(output, output.position(1, lsn(log, THIRD)))
    certificate = judged(log, output if claims else output.without_claims())
    assert certificate.torn == 1
    assert certificate.final_differences == 1
    assert "100" not in certificate.examples["torn"][0]


def test_the_largest_error_is_the_distance_to_the_nearest_committed_state(
    judged: Judge, log: SourceLog, output: RightOutput
) -> None:
    position = output.position(1, lsn(log, THIRD))
    document = output.outputs[position].document
    assert document is not None
    output.change(position, document={**document, "total": "7.75"})
    assert judged(log, output).largest_error == 1.25


def test_the_longest_wrong_interval_ends_with_the_next_right_value(
    judged: Judge, log: SourceLog, output: RightOutput
) -> None:
    position = output.position(1, lsn(log, SECOND))
    without_a_line(output, position)
    output.change(position, visible_ms=2_000_000)
    output.change(output.position(1, lsn(log, THIRD)), visible_ms=2_007_500)
    assert judged(log, output).longest_wrong_seconds == 7.5


def test_a_value_that_stays_wrong_is_wrong_until_the_last_output(
    judged: Judge, log: SourceLog, output: RightOutput
) -> None:
    without_a_line(output, output.position(1, lsn(log, THIRD)))
    output.change(len(output.outputs) - 1, visible_ms=9_000_000)
    assert judged(log, output).longest_wrong_seconds > 7_000


def test_another_commits_state_has_the_wrong_lsn(judged: Judge, log: SourceLog, output: RightOutput) -> None:
    old = output.outputs[output.position(1, lsn(log, SECOND))].document
    output.change(output.position(1, lsn(log, THIRD)), document=old)
    assert counts(judged(log, output)) == {"wrong_lsn": 1, "final_differences": 1}


def test_without_claims_an_older_state_is_an_order_violation(
    judged: Judge, log: SourceLog, output: RightOutput
) -> None:
    output = output.without_claims()
    older, newer = (i for i, each in enumerate(output.outputs) if each.key == {"id": 1} and i > 1)
    swapped = output.outputs[older].document, output.outputs[newer].document
    output.change(newer, document=swapped[0])
    output.change(older, document=swapped[1])
    found = counts(judged(log, output))
    assert found["order_violations"] == 1
    assert found["final_differences"] == 1


def test_a_missing_record_is_lost_twice_over_by_count_and_by_state(
    judged: Judge, log: SourceLog, output: RightOutput
) -> None:
    del output.outputs[output.position(2, lsn(log, SECOND))]
    assert counts(judged(log, output)) == {"lost": 2}


def test_a_batch_lost_with_its_commit_record_breaks_the_chain(
    judged: Judge, log: SourceLog, output: RightOutput
) -> None:
    del output.outputs[output.position(1, lsn(log, THIRD))]
    del output.commits[THIRD]
    assert counts(judged(log, output)) == {"lost": 1, "order_violations": 1, "final_differences": 1}


def test_what_was_committed_after_the_last_commit_record_is_lost(
    judged: Judge, log: SourceLog, output: RightOutput
) -> None:
    del output.outputs[output.position(2, lsn(log, FOURTH))]
    del output.commits[FOURTH]
    certificate = judged(log, output)
    assert counts(certificate) == {"lost": 1, "final_differences": 1}
    assert "after the last" in certificate.examples["lost"][0]


def test_without_claims_a_final_state_that_was_never_shown_is_lost(
    judged: Judge, log: SourceLog, output: RightOutput
) -> None:
    del output.outputs[output.position(1, lsn(log, THIRD))]
    assert counts(judged(log, output.without_claims())) == {"lost": 1, "final_differences": 1}


def test_a_record_written_again_is_repeated_and_outside_its_commit_record(
    judged: Judge, log: SourceLog, output: RightOutput
) -> None:
    output.outputs.append(replace(output.outputs[-1], place=(0, 90)))
    assert counts(judged(log, output)) == {"repeated": 1, "uncovered": 1}


def test_a_batch_written_again_with_its_commit_record_goes_back(
    judged: Judge, log: SourceLog, output: RightOutput
) -> None:
    output.outputs.append(replace(output.outputs[-1], place=(0, 90)))
    output.commits.append(replace(output.commits[-1], ranges=(OffsetRange(0, 1, 90, 90),)))
    assert counts(judged(log, output)) == {"repeated": 1, "order_violations": 1}


def test_without_claims_the_same_value_again_is_repeated(
    judged: Judge, log: SourceLog, output: RightOutput
) -> None:
    output = output.without_claims()
    output.outputs.insert(1, replace(output.outputs[0], place=(0, 90)))
    assert counts(judged(log, output)) == {"repeated": 1}


def test_an_unchanged_document_published_once_more_is_repeated(
    judged: Judge, log: SourceLog, output: RightOutput
) -> None:
    third = output.outputs[output.position(1, lsn(log, THIRD))]
    place = (0, output.outputs[-1].place[1] + 1)
    output.outputs.append(replace(third, place=place, lsn=lsn(log, FOURTH)))
    output.commits[FOURTH] = replace(
        output.commits[FOURTH], ranges=(OffsetRange(0, 2, place[1] - 1, place[1]),)
    )
    assert counts(judged(log, output)) == {"repeated": 1}


def test_a_record_whose_lsn_is_not_that_of_its_commit_record_is_outside(
    judged: Judge, log: SourceLog, output: RightOutput
) -> None:
    output.change(output.position(2, lsn(log, SECOND)), lsn=lsn(log, SECOND) + 1)
    found = counts(judged(log, output))
    assert found["uncovered"] == 1


def test_lsns_of_a_partition_that_go_back_are_order_violations(
    judged: Judge, log: SourceLog, output: RightOutput
) -> None:
    output.change(0, lsn=lsn(log, FOURTH) + 8)
    assert judged(log, output).order_violations == 1


def test_the_lsn_may_come_from_the_commit_records_alone(
    judged: Judge, log: SourceLog, output: RightOutput
) -> None:
    output.outputs = [replace(each, lsn=None) for each in output.outputs]
    assert counts(judged(log, output)) == {}
    old = output.outputs[2].document
    output.change(output.outputs.index(output.outputs[-2]), document=old)
    assert not judged(log, output).is_clean


def test_the_lsn_may_come_from_headers_alone(judged: Judge, log: SourceLog, output: RightOutput) -> None:
    output.commits.clear()
    assert counts(judged(log, output)) == {}
    del output.outputs[output.position(2, lsn(log, SECOND))]
    assert counts(judged(log, output)) == {"lost": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        Output((0, 99), 5, None, None, 1, "no JSON"),
        Output((0, 99), 5, {"id": 1}, {"total": "1"}, 1),
        Output((0, 99), 5, "nothing", None, 1),
        Output((0, 99), 5, {"id": 1}, {"id": 1, "total": "many", "placed_at": None, "lines": []}, 1),
    ],
)
def test_what_cannot_be_read_is_torn(
    judged: Judge, log: SourceLog, output: RightOutput, wrong: Output
) -> None:
    output.outputs.insert(0, wrong)
    certificate = judged(log, output)
    assert certificate.torn == 1
    assert "0/99" in certificate.examples["torn"][0]


def test_a_document_that_never_existed_is_torn(judged: Judge, log: SourceLog, output: RightOutput) -> None:
    output = output.without_claims()
    strange = {"id": 9, "total": "0", "placed_at": None, "lines": []}
    output.outputs.append(Output((0, 99), 5, {"id": 9}, strange))
    assert counts(judged(log, output)) == {"torn": 1, "final_differences": 1}


def test_formats_do_not_matter(judged: Judge, log: SourceLog, output: RightOutput) -> None:
    for position, each in enumerate(output.outputs):
        if each.document is not None:
            at = "2026-01-02 04:04:05.500+01:00"
            lines = [{"price": float(x["price"]), "id": str(x["id"])} for x in each.document["lines"]]
            document = {"placed_at": at, "total": float(each.document["total"]), "lines": json.dumps(lines)}
            output.change(position, document={**document, "id": each.document["id"], "extra": 1})
    assert counts(judged(log, output)) == {}


def test_a_final_state_unlike_the_databases_is_found_even_if_the_topics_agree(
    judged: Judge, log: SourceLog, output: RightOutput
) -> None:
    certificate = judged(log, output, database={(1,): b"another"})
    assert counts(certificate) == {"final_differences": 1, "history_differences": 1}


def test_invariants_judge_without_any_history(
    specification: Specification, view: View, log: SourceLog, output: RightOutput
) -> None:
    right = judge(specification, view, OutputRecords(output.outputs), None, mode=Mode.INVARIANT)
    assert right.is_clean
    without_a_line(output, output.position(1, lsn(log, THIRD)))
    wrong = judge(specification, view, OutputRecords(output.outputs), None, mode=Mode.INVARIANT)
    assert counts(wrong) == {"invariant_violations": 1}
    assert wrong.largest_error == 2.0


def test_lists_that_are_texts_as_in_change_events_are_lists_to_invariants(
    specification: Specification, view: View, output: RightOutput
) -> None:
    for position, each in enumerate(output.outputs):
        if each.document is not None:
            lines = json.dumps(each.document["lines"])
            output.change(position, document={**each.document, "lines": lines})
    assert judge(specification, view, OutputRecords(output.outputs), None, mode=Mode.INVARIANT).is_clean


def test_an_empty_output_is_not_clean(judged: Judge) -> None:
    certificate = judged(SourceLog(), RightOutput())
    assert counts(certificate) == {}
    assert not certificate.is_clean
    assert "NOTHING WAS JUDGED" in report(certificate)


def test_delays_count_from_each_transactions_commit(judged: Judge, log: SourceLog) -> None:
    delays = judged(log, RightOutput.publish(log, per_batch=2)).delay_ms
    assert delays is not None
    assert (delays.count, delays.p50, delays.max) == (4, 50, 60)


def test_the_report_names_what_was_found_and_the_clock(
    judged: Judge, log: SourceLog, output: RightOutput
) -> None:
    without_a_line(output, output.position(1, lsn(log, THIRD)))
    text = report(judged(log, output))
    assert "torn, for example:" in text
    assert "(by record timestamps)" in text
    assert "VIOLATED" in text
    assert "│" in text


def test_the_certificate_can_be_written_as_json(judged: Judge, log: SourceLog, output: RightOutput) -> None:
    numbers = json.loads(judged(log, output).to_json())
    assert numbers["is_clean"] is True
    assert numbers["delay_ms"]["p99"] == 50
    assert sum(bucket["outputs"] for bucket in numbers["timeline"]) == len(output.outputs)


# --- what operators have skipped


@pytest.fixture
def skipped() -> SourceLog:
    """The second commit was skipped before one of its lines came; that order changes once more."""
    log = SourceLog()
    log.commit(("orders", 1, order(1, "1.50")), ("lines", 11, line(11, 1, "1.50")))
    log.commit(("orders", 2, order(2, "1.00")), ("lines", 21, line(21, 2, "1.00")), late_line())
    log.skip("lines", 22)
    log.commit(("lines", 23, line(23, 2, "3.00")), ("orders", 2, order(2, "4.00")))
    return log


def late_line() -> tuple[str, int, Row]:
    return "lines", 22, line(22, 2, "0.00")


def test_rows_that_came_after_an_operators_skip_are_not_to_be_shown(
    skipped: SourceLog, judged: Judge
) -> None:
    certificate = judged(skipped, RightOutput.publish(skipped))
    assert certificate.is_clean
    assert "1 transactions were skipped by an operator" in certificate.notes
    shown = SourceLog()
    shown.commit(("orders", 1, order(1, "1.50")), ("lines", 11, line(11, 1, "1.50")))
    shown.commit(("orders", 2, order(2, "1.00")), ("lines", 21, line(21, 2, "1.00")), late_line())
    shown.commit(("lines", 23, line(23, 2, "3.00")), ("orders", 2, order(2, "4.00")))
    assert shown.commits == skipped.commits
    output = RightOutput.publish(shown)
    output.commits[SECOND] = replace(output.commits[SECOND], skipped=(702,))
    found = counts(judged(skipped, output))
    assert found == {"torn": 2, "final_differences": 1}


def test_a_skip_that_no_cut_has_is_not_believed(skipped: SourceLog, judged: Judge) -> None:
    output = RightOutput.publish(skipped)
    skipped.records = [each for each in skipped.records if not each.topic.endswith("cuts")]
    found = counts(judged(skipped, output))
    assert found == {"torn": 2, "lost": 1, "final_differences": 1}, "it lacks a line, and has no excuse"


def test_a_skip_that_no_commit_record_names_is_found(skipped: SourceLog, judged: Judge) -> None:
    output = RightOutput.publish(skipped)
    output.commits[SECOND] = replace(output.commits[SECOND], skipped=())
    assert counts(judged(skipped, output)) == {"lost": 1}
    output.commits[THIRD] = replace(output.commits[THIRD], skipped=(702,))
    assert counts(judged(skipped, output)) == {}, "a group of partitions may be behind the cut that skips"
    output.commits[FIRST] = replace(output.commits[FIRST], skipped=(701,))
    certificate = judged(skipped, output)
    assert counts(certificate) == {"lost": 1}
    (text,) = certificate.examples["lost"]
    assert "transaction 701 was skipped, but no cut does" in text


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Specification:
    """A view that fails on an order whose total is negative, which the output withholds."""
    file = write_specification(tmp_path_factory.mktemp("strict"))
    view_file, text = file.parent / "view.sql", file.read_text(encoding="utf-8")
    sql = view_file.read_text(encoding="utf-8")
    assert "o.total" in sql
    fails = "CASE WHEN o.total < 0 THEN CAST(error('negative') AS numeric(12,2)) ELSE o.total END AS total"
    view_file.write_text(sql.replace("o.total", fails, 1), encoding="utf-8")
    file.write_text(text.replace("[view]\n", "[view]\nquarantine = true\n"), encoding="utf-8")
    return load_specification(file)


@pytest.fixture
def withholding() -> tuple[SourceLog, RightOutput]:
    """The second order fails from the second commit on; its document is withdrawn."""
    log = SourceLog()
    log.snapshot([("orders", order(1, "1.50"))])
    log.commit(("orders", 2, order(2, "3.00")))
    log.commit(("orders", 2, order(2, "-1.00")))
    log.commit(("orders", 1, order(1, "2.00")))
    output = RightOutput.publish(log)
    output.change(output.position(2, lsn(log, SECOND)), document=None)
    return log, output


def test_a_document_that_the_view_fails_on_is_to_be_withheld(
    judged_by: JudgeBy, strict: Specification, withholding: tuple[SourceLog, RightOutput]
) -> None:
    certificate = judged_by(strict, *withholding)
    assert (counts(certificate), certificate.withheld) == ({}, 1)
    assert any("withheld" in each and "1 documents" in each for each in report(certificate).splitlines())


def test_a_document_that_should_be_withheld_and_is_shown_is_torn(
    judged_by: JudgeBy, strict: Specification, withholding: tuple[SourceLog, RightOutput]
) -> None:
    log, _ = withholding
    assert counts(judged_by(strict, log, RightOutput.publish(log)))["torn"] == 1


def test_a_document_that_is_withheld_although_the_view_does_not_fail_is_lost(
    judged_by: JudgeBy, strict: Specification, withholding: tuple[SourceLog, RightOutput]
) -> None:
    log, output = withholding
    output.change(output.position(1, lsn(log, THIRD)), document=None)
    assert counts(judged_by(strict, log, output)) == {"torn": 1, "final_differences": 1}


def test_without_quarantine_such_a_view_cannot_be_judged(
    judged_by: JudgeBy, strict: Specification, withholding: tuple[SourceLog, RightOutput]
) -> None:
    stopping = replace(strict, view=replace(strict.view, quarantine=False))
    with pytest.raises(CertifyConfigError, match="negative"):
        judged_by(stopping, *withholding)
