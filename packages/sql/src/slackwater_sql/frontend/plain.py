"""A tree as one plain query: what the tree means, as DuckDB understands it."""

from slackwater_sql.document import identifier
from slackwater_sql.logical import (
    Aggregate,
    Extend,
    Filter,
    Join,
    JoinKind,
    Leaf,
    LogicalView,
    Relation,
    Scan,
    Union,
    Window,
)


def plain_view(view: LogicalView) -> str:
    """SQL over the tables `"schema"."table"` that gives the view's rows, with its columns' names."""
    outputs = ", ".join(f"{identifier(column)} AS {identifier(name)}" for name, column in view.outputs)
    return f"SELECT {outputs} FROM (\n{plain(view.relation)}\n)"  # noqa: S608 - our own names


def plain(relation: Relation) -> str:
    """SQL that gives the relation's columns under their ids."""
    match relation:
        case Scan(table=table, ids=ids):
            columns = ", ".join(f"{identifier(name)} AS {identifier(column)}" for name, column in ids.items())
            return f"SELECT {columns} FROM {identifier(table.schema)}.{identifier(table.name)}"  # noqa: S608
        case Extend(child=child, computed=computed):
            return _with_columns(child, tuple((name, each.sql) for name, each in computed))
        case Window(child=child, calls=calls):
            return _with_columns(child, tuple((name, each.sql) for name, each in calls))
        case Filter(child=child, condition=condition):
            return f"SELECT * FROM (\n{plain(child)}\n)\nWHERE {condition.sql}"  # noqa: S608
        case Join():
            return _join(relation)
        case Aggregate():
            return _aggregate(relation)
        case Union():
            return "\nUNION ALL\n".join(_branch(relation, number) for number in range(len(relation.children)))
        case Leaf():
            message = "a leaf stands for rows that only a stage has"
            raise TypeError(message)


def _with_columns(child: Relation, computed: tuple[tuple[str, str], ...]) -> str:
    columns = ", ".join(["*", *(f"{sql} AS {identifier(name)}" for name, sql in computed)])
    return f"SELECT {columns} FROM (\n{plain(child)}\n)"  # noqa: S608


def _join(join: Join) -> str:
    conditions = [f"({left.sql}) = ({right.sql})" for left, right in join.equal]
    if join.residual is not None:
        conditions.append(f"({join.residual.sql})")
    condition = " AND ".join(conditions) or "TRUE"
    if join.kind.keeps_left_only:
        negation = "NOT " if join.kind is JoinKind.ANTI else ""
        right = f"SELECT 1 FROM (\n{plain(join.right)}\n) WHERE {condition}"  # noqa: S608
        return f"SELECT * FROM (\n{plain(join.left)}\n) WHERE {negation}EXISTS ({right})"  # noqa: S608
    sides = f"(\n{plain(join.left)}\n) AS l {join.kind} JOIN (\n{plain(join.right)}\n) AS r"
    return f"SELECT * FROM {sides} ON {condition}"  # noqa: S608


def _aggregate(relation: Aggregate) -> str:
    columns = [f"{each.sql} AS {identifier(name)}" for name, each in relation.groups]
    columns += [f"{each.sql} AS {identifier(name)}" for name, each in relation.calls]
    groups = ", ".join(str(number + 1) for number in range(len(relation.groups)))
    return (
        f"SELECT {', '.join(columns)} FROM (\n{plain(relation.child)}\n)"  # noqa: S608
        + (f"\nGROUP BY {groups}" if groups else "")
    )


def _branch(union: Union, number: int) -> str:
    columns = [f"{identifier(ids[number])} AS {identifier(name)}" for name, ids in union.sources]
    child = union.children[number]
    texts = [f"CAST({identifier(column)} AS VARCHAR)" for column in child.identity]
    texts += ["CAST(NULL AS VARCHAR)"] * (len(union.identity) - 1 - len(texts))
    columns += [
        f"{value} AS {identifier(name)}"
        for name, value in zip(union.identity, [str(number), *texts], strict=True)
    ]
    return f"SELECT {', '.join(columns)} FROM (\n{plain(child)}\n)"  # noqa: S608
