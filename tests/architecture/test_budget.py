import pytest

import infra.budget
from infra.budget import LAYOUT, ceilings, excess, rooms, written

TOO_BIG = "give something back, or raise the ceiling in infra/budget/budget.toml and say why"


def test_every_room_is_below_its_ceiling() -> None:
    assert excess() == [], TOO_BIG


def test_no_ceiling_is_of_a_room_that_is_gone() -> None:
    assert ceilings().keys() == {*rooms(), "repository", "documentation"}


def test_the_layout_page_shows_the_rooms() -> None:
    page = LAYOUT.read_text()
    assert all(f"| `{name}` |" in written(page) for name in rooms())
    assert all(f"| `{name}` |" in page for name in rooms()), "run python -m infra.budget"


@pytest.mark.parametrize("what", ["lines", "modules", "classes", "errors"])
def test_what_is_above_a_ceiling_is_named(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, size = next((name, size) for name, size in rooms().items() if size[what])
    allowed = {**ceilings(), name: {**ceilings()[name], what: size[what] - 1}}
    monkeypatch.setattr(infra.budget, "ceilings", lambda: allowed)
    assert f"{name}: {size[what]:,} {what}, at most {size[what] - 1} are allowed" in excess()


def test_a_room_without_a_ceiling_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infra.budget, "ceilings", dict)
    assert len(excess()) >= len(rooms())
