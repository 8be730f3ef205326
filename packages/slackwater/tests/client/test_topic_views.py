"""The newest documents of a view, key by key."""

import pytest

from slackwater.client.topic_views import FoldedView
from slackwater.protocol import ConfigError


def test_documents_in_any_form_are_folded_by_their_keys() -> None:
    view = FoldedView()
    for key, document in (
        (b"\0\0\0\0\x01\x02", b"\0a"),
        (b"k", b"b"),
        (b"\0\0\0\0\x01\x02", b"\0c"),
        (b"k", None),
    ):
        view.add(key, document)

    assert view.documents == {b"\0\0\0\0\x01\x02": b"\0c"}


@pytest.mark.parametrize("key", [b"\0\0\0\0\x01\x02", b"a text", b"17"])
def test_one_key_is_not_looked_for_among_keys_without_columns(key: bytes) -> None:
    with pytest.raises(ConfigError, match='publish it with key_format = "json"'):
        FoldedView({"id": 1}).add(key, b"{}")
