"""Commands of Kafka's tool that can be pasted into a shell."""

import shlex

from slackwater_protocol.rights import Operation, Resource, Right, acl_commands


def test_names_are_one_word_of_the_shell_whatever_they_contain() -> None:
    user, topic = "CN=o'neil; rm -rf /", "a' $(b)"
    (line,) = acl_commands(user, [Right(Resource.TOPIC, topic, Operation.READ)], "k:9092; x")

    words = shlex.split(line)

    assert words[words.index("--allow-principal") + 1] == f"User:{user}"
    assert words[words.index("--topic") + 1] == topic
    assert words[words.index("--bootstrap-server") + 1] == "k:9092; x"
    assert len(words) == 10
