"""The lists of rights, line by line, and commands of Kafka's tool that can be pasted into a shell."""

import shlex
from collections.abc import Iterable

import pytest

from slackwater.protocol.keys import SourceTopics
from slackwater.protocol.rights import (
    Operation,
    Resource,
    Right,
    SendingWay,
    acl_commands,
    audit_rights,
    consumer_rights,
    operator_rights,
    pipeline_rights,
    processor_rights,
    producer_rights,
    reader_rights,
    sender_rights,
    sidecar_rights,
    source_commit_rights,
    switched_rights,
    switching_rights,
    viewer_rights,
)

SOURCE = SourceTopics("inv", {"public.r": "routed"})


def lines(rights: Iterable[Right]) -> list[str]:
    """Returns a line for each resource, with all operations on it."""
    found: dict[str, list[str]] = {}
    for right in rights:
        name = f"{right.resource} {right.name}{'*' if right.is_prefix else ''}"
        found.setdefault(name, []).append(str(right.operation))
    return sorted(f"{name}: {' '.join(sorted(operations))}" for name, operations in found.items())


@pytest.mark.parametrize(
    ("rights", "expected"),
    [
        (
            sidecar_rights(SOURCE, None),
            [
                "topic __debezium-heartbeat.inv: Read",
                "topic inv.*: DescribeConfigs Read",
                "topic inv.slackwater.cuts: Create Write",
                "topic routed: DescribeConfigs Read",
            ],
        ),
        (
            source_commit_rights("inv"),
            [
                "topic inv.commits-avro: Create Read Write",
                "transactional-id slackwater-commits-inv: Write",
            ],
        ),
        (
            sidecar_rights(SOURCE, ["public.a"]),
            [
                "topic __debezium-heartbeat.inv: Read",
                "topic inv.notifications: Read",
                "topic inv.public.a: DescribeConfigs Read",
                "topic inv.slackwater.cuts: Create Read Write",
                "topic inv.transaction: DescribeConfigs Read",
            ],
        ),
        (
            pipeline_rights("p", SOURCE, ["public.a", "public.r"], {"v": ""}, is_latest=True),
            [
                "topic inv.public.a: Read",
                "topic inv.slackwater.cuts: Read",
                "topic p.slackwater.progress: Create DescribeConfigs Read Write",
                "topic routed: Read",
                "topic slackwater.leases: Read Write",
                "topic slackwater.pipelines: Create Read Write",
                "topic v.commits: Create Read Write",
                "topic v: AlterConfigs Create Read Write",
                "transactional-id slackwater-p: Write",
            ],
        ),
        (
            pipeline_rights("p.v2", SOURCE, ["public.a"], {"s.public.v": "s"}, is_latest=False),
            [
                "topic inv.public.a: Read",
                "topic inv.slackwater.cuts: Read",
                "topic p.v2.slackwater.progress: Create DescribeConfigs Read Write",
                "topic s.notifications: Create Read Write",
                "topic s.public.v.commits: Create Read Write",
                "topic s.public.v: Create DescribeConfigs Read Write",
                "topic s.transaction: Create Read Write",
                "topic slackwater.leases: Read Write",
                "topic slackwater.pipelines: Create Read Write",
                "transactional-id slackwater-p.v2: Write",
            ],
        ),
        (
            pipeline_rights("p", SOURCE, [], {"v": "", "w": ""}, is_latest=False, avro_commits_of=["w"]),
            [
                "topic inv.slackwater.cuts: Read",
                "topic p.slackwater.progress: Create DescribeConfigs Read Write",
                "topic slackwater.leases: Read Write",
                "topic slackwater.pipelines: Create Read Write",
                "topic v.commits: Create Read Write",
                "topic v: Create DescribeConfigs Read Write",
                "topic w.commits-avro: Create Read Write",
                "topic w.commits: Create Read Write",
                "topic w: Create DescribeConfigs Read Write",
                "transactional-id slackwater-p: Write",
            ],
        ),
        (
            pipeline_rights("p", SOURCE, ["public.a"], {}, is_latest=True),
            [
                "topic inv.public.a: Read",
                "topic inv.slackwater.cuts: Read",
                "topic slackwater.leases: Read Write",
                "topic slackwater.pipelines: Create Read Write",
            ],
        ),
        (
            consumer_rights(["t"], "g"),
            ["group g: Read", "topic t: Read"],
        ),
        (
            consumer_rights(["t"], "g", is_by_unit=True),
            ["group g: Read", "topic g.units: Create Read", "topic t: Read"],
        ),
        (
            reader_rights(["t"], ["t.commits"], ["p"]),
            ["topic p.slackwater.progress: Read", "topic t.commits: Read", "topic t: Read"],
        ),
        (
            reader_rights(["t"], ["t.commits"], ["p"], reads_earlier=True, takes_leases=True),
            [
                "topic p.slackwater.progress: Read",
                "topic slackwater.leases: Create Read Write",
                "topic t.commits: Read",
                "topic t: DescribeConfigs Read",
            ],
        ),
        (
            switched_rights("p"),
            ["topic p.slackwater.readers: Read"],
        ),
        (
            switching_rights("p", ["p", "p.v2"], ["t", "t.v2"]),
            [
                "topic p.slackwater.progress: Read",
                "topic p.slackwater.readers: Create Read Write",
                "topic p.v2.slackwater.progress: Read",
                "topic t.commits: Read",
                "topic t.v2.commits: Read",
                "topic t.v2: DescribeConfigs",
                "topic t: DescribeConfigs",
                "transactional-id p.slackwater.readers: Write",
            ],
        ),
        (
            producer_rights("b"),
            [
                "topic b.*: Create Write",
                "topic b.commits: Read",
                "transactional-id slackwater-producer-b: Write",
            ],
        ),
        (
            producer_rights("b", "g"),
            [
                "group g: Read",
                "topic b.*: Create Write",
                "topic b.commits: Read",
                "transactional-id slackwater-producer-b: Write",
            ],
        ),
        (
            sender_rights(SendingWay.POLLING, ["t"], "n", ["o"]),
            ["topic t: Write"],
        ),
        (
            sender_rights(SendingWay.CAPTURE, ["t"], "n", ["o"]),
            ["group n: Read", "topic o: Read", "topic t: Write", "transactional-id n: Write"],
        ),
        (
            sender_rights(SendingWay.CHAINED, ["t"], "n", ["o"]),
            ["topic t: Write", "transactional-id n: Write"],
        ),
        (
            sender_rights(SendingWay.SAVED, ["t"], "n", ["o"]),
            ["topic t: Read Write", "transactional-id n: Write"],
        ),
        (
            sender_rights(SendingWay.PROVEN, ["t"], "n", ["o"]),
            ["topic t: Read Write", "transactional-id n: Write"],
        ),
        (
            sender_rights(SendingWay.PREPARED, ["t"], "n", ["o"]),
            ["topic n.slackwater.outcomes: Create Read Write", "topic t: Write", "transactional-id n: Write"],
        ),
        (
            sender_rights(SendingWay.PREPARED, ["t"], "n", is_pool=True),
            ["topic n.slot-*: Create Read Write", "topic t: Write", "transactional-id n.slot-*: Write"],
        ),
        (
            audit_rights(["t"]),
            ["topic t: Read"],
        ),
        (
            processor_rights(["t"], ["o"], "g", "id"),
            ["group g: Read", "topic o: Write", "topic t: Read", "transactional-id id: Write"],
        ),
        (
            viewer_rights(SOURCE, ["public.a"]),
            [
                "topic inv.public.a: Read",
                "topic inv.slackwater.cuts: Read",
                "topic inv.transaction: Read",
                "topic slackwater.leases: Read",
                "topic slackwater.pipelines: Read",
            ],
        ),
        (
            operator_rights(SOURCE, ["public.a"]),
            [
                "topic inv.public.a: Read",
                "topic inv.slackwater.cuts: Read Write",
                "topic inv.transaction: Read",
                "topic slackwater.leases: Read Write",
                "topic slackwater.pipelines: Read Write",
            ],
        ),
    ],
)
def test_each_role_has_its_rights_and_no_others(rights: list[Right], expected: list[str]) -> None:
    assert lines(rights) == expected


def test_names_are_one_word_of_the_shell_whatever_they_contain() -> None:
    user, topic = "CN=o'neil; rm -rf /", "a' $(b)"
    (line,) = acl_commands(user, [Right(Resource.TOPIC, topic, Operation.READ)], "k:9092; x")

    words = shlex.split(line)

    assert words[words.index("--allow-principal") + 1] == f"User:{user}"
    assert words[words.index("--topic") + 1] == topic
    assert words[words.index("--bootstrap-server") + 1] == "k:9092; x"
    assert len(words) == 10
