"""One folder for everything that can be made again."""

from pathlib import Path

import pytest

from slackwater.protocol import user_cache


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"SLACKWATER_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/slackwater"),
        ({}, f"{Path.home()}/.cache/slackwater"),
    ],
)
def test_the_cache_is_where_the_user_wants_it(environment: dict[str, str], folder: str) -> None:
    assert user_cache(environment) == Path(folder)


def test_without_a_home_folder_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", homeless)
    assert user_cache({}) is None
    assert user_cache({"XDG_CACHE_HOME": "/b"}) == Path("/b/slackwater")
