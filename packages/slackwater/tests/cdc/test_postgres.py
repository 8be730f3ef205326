"""The dialect of PostgreSQL, and that nobody else computes with commit positions."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.cdc.postgres import next_position_between_commits, parse_transaction_id, xid_of_position
from slackwater.protocol import MalformedRecordError

ROOT = Path(__file__).parents[4]


def test_the_id_of_an_end_record_gives_xid_and_commit_lsn() -> None:
    assert parse_transaction_id("736:22270488") == (736, 22270488)


@pytest.mark.parametrize("text", ["736", "", "uuid:x", "5.6.641", "736:"])
def test_ids_of_other_connectors_are_refused(text: str) -> None:
    with pytest.raises(MalformedRecordError, match="expected '<xid>:<lsn>'"):
        parse_transaction_id(text)


def test_transaction_0_is_none_that_a_connector_names() -> None:
    with pytest.raises(MalformedRecordError, match="got '0:22270488'"):
        parse_transaction_id("0:22270488")


def test_the_numbers_of_a_transaction_id_have_at_most_63_bits() -> None:
    most = 2**63 - 1
    assert parse_transaction_id(f"{most}:{most}") == (most, most)
    for text in (f"{most + 1}:1", f"1:{most + 1}"):
        with pytest.raises(MalformedRecordError):
            parse_transaction_id(text)


def test_what_belongs_to_no_transaction_has_an_xid_of_its_own_at_each_position() -> None:
    first, second = xid_of_position(0), xid_of_position(1)
    assert 2**32 <= first < second
    assert parse_transaction_id(f"{second}:1") == (second, 1)


def test_between_two_commits_lie_the_positions_that_are_not_aligned() -> None:
    assert [next_position_between_commits(n) for n in range(16, 25)] == [
        *range(17, 24),
        None,
        25,
    ]


PRODUCT = (
    "protocol", "cdc", "sql", "kafka", "cuts", "engine", "api", "pipeline", "outputs", "cli", "client",
)  # fmt: skip
ALLOWED = {
    "slackwater/cdc/postgres.py": "the dialect",
    "slackwater/protocol/commit_position.py": "the text form",
    "slackwater/cdc/batch.py": "differences of a sorted column, undone when it is read",
    "slackwater/cdc/change_writer.py": "the text of change events",
    "slackwater/client/written.py": "positions of a source whose order its producer makes",
    "slackwater/engine/table_packer.py": "how far changes lie before their commit, to order them",
}
ARITHMETIC = (
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Mod,
    ast.FloorDiv,
    ast.LShift,
    ast.RShift,
    ast.BitAnd,
    ast.BitOr,
)


def is_position(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return (name == "lsn" or name.endswith("_lsn")) and name != "wrong_lsn"  # that is a count


def computations(file: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ARITHMETIC):
            operands = [node.left, node.right]
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ARITHMETIC):
            operands = [node.target, node.value]
        else:
            continue
        if any(map(is_position, operands)):
            yield node.lineno


def test_nobody_computes_with_positions_but_the_dialect_and_the_text_form() -> None:
    product, sidecar = ROOT / "packages/slackwater/src", ROOT / "sidecar/src"
    files = [
        (base, file)
        for base, folder in [
            *((product, product / "slackwater" / name) for name in PRODUCT),
            (sidecar, sidecar),
        ]
        for file in folder.rglob("*.py")
        if "testing" not in (*file.parts, file.stem)
    ]
    found = {
        f"{name}:{line}"
        for folder, file in files
        if (name := file.relative_to(folder).as_posix()) not in ALLOWED
        for line in computations(file)
    }

    assert len(files) > 100
    assert found == set()


def test_the_search_for_computations_finds_those_of_the_dialect_s_neighbours() -> None:
    batch = ROOT / "packages/slackwater/src/slackwater/cdc/batch.py"

    assert list(computations(batch))
