"""Messages are handed over in stretches of one partition and one connector run."""

from confluent_kafka import Message

from slackwater_sidecar.consumption import RUN_HEADER, by_partition, by_run, is_keyless, run_of, triples


def message(
    offset: int, *, topic: str = "t", partition: int = 0, run: str | None = "r1", key: bytes | None = b"k"
) -> Message:
    headers: list[tuple[str, str | bytes | None]] = [("other", b"x")]
    if run is not None:
        headers.append((RUN_HEADER, run.encode()))
    return Message(topic=topic, partition=partition, offset=offset, key=key, value=b"v", headers=headers)


def runs(*messages: Message) -> list[tuple[str, list[int | None]]]:
    return [(run, [m.offset() for m in part]) for run, part in by_run(messages)]


def merged(stretches: list[tuple[str, list[int | None]]]) -> list[tuple[str, list[int | None]]]:
    """Stretches of one run behind each other as one."""
    result: list[tuple[str, list[int | None]]] = []
    for run, offsets in stretches:
        if result and result[-1][0] == run:
            result[-1] = run, result[-1][1] + offsets
        else:
            result.append((run, offsets))
    return result


def test_a_partition_ends_where_another_number_or_topic_begins() -> None:
    messages = [
        message(1),
        message(2),
        message(7, partition=1),
        message(8, topic="u", partition=1),
        message(3),
    ]
    found = [(topic, number, [m.offset() for m in part]) for topic, number, part in by_partition(messages)]

    assert found == [("t", 0, [1, 2]), ("t", 1, [7]), ("u", 1, [8]), ("t", 0, [3])]


def test_messages_of_one_run_stay_together() -> None:
    assert runs(message(1), message(2), message(3)) == [("r1", [1, 2, 3])]


def test_a_run_ends_wherever_the_next_one_begins() -> None:
    for border in range(1, 9):
        messages = [message(n, run="r1" if n < border else "r2") for n in range(9)]
        expected = [("r1", list(range(border))), ("r2", list(range(border, 9)))]
        assert merged(runs(*messages)) == expected


def test_three_runs_are_told_apart() -> None:
    messages = [message(n, run=f"r{n // 3}") for n in range(9)]

    assert merged(runs(*messages)) == [("r0", [0, 1, 2]), ("r1", [3, 4, 5]), ("r2", [6, 7, 8])]


def test_a_message_without_the_header_names_no_run() -> None:
    assert run_of(message(1, run=None)) == ""
    assert run_of(message(1, run="r7")) == "r7"
    assert run_of(Message(topic="t", partition=0, offset=1, value=b"v")) == ""


def test_a_table_has_no_key_if_neither_the_first_nor_the_last_message_has_one() -> None:
    """A truncation has none, whatever its table."""
    with_key, without = message(1), message(2, key=None)

    assert is_keyless([without, with_key, without])
    assert not is_keyless([without, with_key])
    assert not is_keyless([with_key, without])


def test_records_of_the_transaction_topic_come_with_their_time() -> None:
    first = Message(topic="t", partition=0, offset=4, value=b"v", timestamp=(1, 77))

    assert list(triples([first])) == [(4, b"v", 77)]
