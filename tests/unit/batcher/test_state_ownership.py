"""Each field of the core's records has one writer: the file that the table in `batcher/state.py` names."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

CORE = Path(__file__).parents[3] / "batcher"
_TABLE_ROW = re.compile(r"^(\w+)\s+([\w/]+(?:\.py|/))\s+(\w[\w ]*)$", re.MULTILINE)
ESTIMATES = CORE / "estimates"
_HEAP_FUNCTIONS = {"heappush", "heappop", "heapify", "heapreplace", "heappushpop"}
_CONTAINER_METHODS = {
    *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"),
    *("add", "discard", "update", "setdefault", "popitem"),
    *("difference_update", "intersection_update", "symmetric_difference_update"),
}
_GETTERS = {"get", "setdefault", "values", "items"}
"""Methods that return what a container holds."""
Aliases = dict[str, list[ast.expr]]
"""The expressions that a name of a scope may stand for."""
OTHER_OBJECTS = {
    ("live", "queues/"),  # of a queue or a flow
    ("rows", "queues/"),
    ("only", "queues/"),  # the partitions of a queue
}
"""Fields of other objects that have the names of fields of records, and the places that may change those."""


class Write(NamedTuple):
    """A statement that changes a field of some object."""

    file: str
    line: int
    field: str


def table() -> dict[tuple[str, str], str]:
    """The only writer of each (record, field)."""
    document = ast.get_docstring(ast.parse((CORE / "state.py").read_text()))
    assert document is not None
    rows = {}
    for record, writer, fields in _TABLE_ROW.findall(document):
        for field in fields.split():
            assert (record, field) not in rows, f"{record}.{field} has two writers in the table"
            rows[record, field] = writer
    return rows


def records() -> dict[str, set[str]]:
    """The fields of each record of `state.py`, by the annotations of the class."""
    found = {}
    for node in ast.parse((CORE / "state.py").read_text()).body:
        if isinstance(node, ast.ClassDef):
            targets = (item.target for item in node.body if isinstance(item, ast.AnnAssign))
            fields = {target.id for target in targets if isinstance(target, ast.Name)}
            if fields:
                found[node.name] = fields
    return found


def writes() -> list[Write]:
    """All statements of the core that change a field of an object other than `self`."""
    found = []
    for path in sorted(CORE.rglob("*.py")):
        if path.name != "state.py" and "planner" not in path.parts:
            file = str(path.relative_to(CORE))
            found += [Write(file, place.lineno, field) for place, field in _writes_in(ast.parse(path.read_text()), {})]
    return found


@cache
def _mutating_methods() -> frozenset[str]:
    """The methods that change the object they are called on: those of containers, and those of estimates."""
    names = set(_CONTAINER_METHODS)
    for path in ESTIMATES.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name != "__init__":
                targets = [target for part in ast.walk(node) for target in _targets(part)]
                if any(_is_own(place) for target in targets for place in _places(target, {})):
                    names.add(node.name)
    return frozenset(names)


def _writes_in(scope: ast.AST, outer: Aliases) -> Iterator[tuple[ast.expr, str]]:
    """The changes in a module or function, with those in the functions that it defines."""
    nodes = list(_nodes_of(scope))
    aliases = dict(outer)
    for node in nodes:
        for name, value in _bindings(node):
            aliases[name] = [*aliases.get(name, ()), value]
    for node in nodes:
        for place in _changed(node, aliases):
            if not _is_own(place):
                yield place, place.attr
        yield from _named_fields(node)
        if node is not scope and isinstance(node, _FUNCTIONS):
            yield from _writes_in(node, aliases)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _nodes_of(scope: ast.AST) -> Iterator[ast.AST]:
    """The scope and the nodes in it; of the functions that it defines, only the definitions."""
    left = [scope]
    while left:
        node = left.pop()
        yield node
        if node is scope or not isinstance(node, _FUNCTIONS):
            left += ast.iter_child_nodes(node)


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The names that a node binds, each with the expression that it then stands for, or that holds what it is."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _pairs(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield from _pairs(node.target, node.value)
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        for target in _flat(node.target):
            yield from _pairs(target, node.iter)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        literal = value.elts if isinstance(value, ast.Tuple | ast.List) else ()
        values = literal if len(literal) == len(target.elts) else [value] * len(target.elts)
        for part, its_value in zip(target.elts, values, strict=True):
            yield from _pairs(part, its_value)


def _changed(node: ast.AST, aliases: Aliases) -> Iterator[ast.Attribute]:
    """The fields that a node assigns, deletes or mutates."""
    for target in _targets(node):
        if not isinstance(target, ast.Name) or isinstance(node, ast.AugAssign):
            yield from _places(target, aliases)
    if isinstance(node, ast.Attribute) and node.attr in _mutating_methods():
        yield from _places(node.value, aliases)
    if isinstance(node, ast.Call) and node.args and _name_of(node.func) in _HEAP_FUNCTIONS:
        yield from _places(node.args[0], aliases)


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    """The targets that a node assigns or deletes."""
    targets: list[ast.expr | None] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets += node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr | ast.For | ast.AsyncFor | ast.comprehension):
        targets.append(node.target)
    elif isinstance(node, ast.withitem):
        targets.append(node.optional_vars)
    for target in targets:
        if target is not None:
            yield from _flat(target)


def _flat(target: ast.expr) -> Iterator[ast.expr]:
    """The parts of a target, which may be nested."""
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _flat(part)
    else:
        yield from _flat(target.value) if isinstance(target, ast.Starred) else (target,)


def _places(expression: ast.expr, aliases: Aliases) -> Iterator[ast.Attribute]:
    """The fields that an expression may stand for, or that hold what it stands for."""
    if isinstance(expression, ast.Attribute):
        yield expression
    elif isinstance(expression, ast.Subscript | ast.NamedExpr):
        yield from _places(expression.value, aliases)
    elif isinstance(expression, ast.Call):
        if isinstance(expression.func, ast.Attribute) and expression.func.attr in _GETTERS:
            yield from _places(expression.func.value, aliases)
    elif isinstance(expression, ast.IfExp | ast.BoolOp):
        parts = [expression.body, expression.orelse] if isinstance(expression, ast.IfExp) else expression.values
        for part in parts:
            yield from _places(part, aliases)
    elif isinstance(expression, ast.Name):
        others = {name: values for name, values in aliases.items() if name != expression.id}
        for value in aliases.get(expression.id, ()):
            yield from _places(value, others)


def _named_fields(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """The field that `setattr`, `object.__setattr__` or `delattr` changes of an object other than `self`."""
    if isinstance(node, ast.Call) and _name_of(node.func) in {"setattr", "delattr", "__setattr__", "__delattr__"}:
        match node.args:
            case [changed, ast.Constant(value=str(field)), *_] if not _is_self(changed):
                yield node, field


def _name_of(function: ast.expr) -> str | None:
    """The last name of a function as it is called: `heappush` for `heapq.heappush`."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


def _is_own(place: ast.Attribute) -> bool:
    """True for a field of `self`, which is no record."""
    return _is_self(place.value)


def _is_self(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Name) and expression.id == "self"


def _is_in(file: str, place: str) -> bool:
    return file.startswith(place) if place.endswith("/") else file == place


def test_the_table_names_fields_and_files_that_exist() -> None:
    fields = records()
    for (record, field), writer in table().items():
        assert field in fields[record], f"{record} has no field {field}"
        assert (CORE / writer).exists(), f"{writer} of {record}.{field} does not exist"


def test_only_the_writer_of_a_field_changes_it() -> None:
    writers: dict[str, set[str]] = {}
    for (_, field), writer in table().items():
        writers.setdefault(field, set()).add(writer)
    fields = set().union(*records().values())
    wrong = [
        f"batcher/{write.file}:{write.line} changes {write.field}; its writer: {writers.get(write.field, 'none')}"
        for write in writes()
        if write.field in fields
        and not any(_is_in(write.file, writer) for writer in writers.get(write.field, ()))
        and not any(write.field == field and _is_in(write.file, place) for field, place in OTHER_OBJECTS)
    ]
    assert wrong == []


def test_every_field_of_the_table_is_written_where_it_says() -> None:
    found = {(write.field, write.file) for write in writes()}
    unwritten = [
        f"{record}.{field}: {writer}"
        for (record, field), writer in table().items()
        if not any(field == each and _is_in(file, writer) for each, file in found)
    ]
    assert unwritten == []


CHANGES = (
    "partition.ready = True",
    "model.outstanding += 1",
    "stage.model: int = 1",
    "request.entries.append(entry)",
    "del group.partitions[1]",
    "group.partitions[1] = partition",
    "stage, request.running = 1, 2",
    "a, (group.kind, b) = 1, (2, 3)",
    "[a, group.kind] = 1, 2",
    "a, *group.idle = 1, 2",
    "for group.kind in 'ab': pass",
    "[0 for group.kind in 'ab']",
    "with lock as group.kind: pass",
    "setattr(group, 'kind', 1)",
    "object.__setattr__(group, 'kind', 1)",
    "delattr(group, 'kind')",
    "heappush(group.idle, 1)",
    "heapq.heappush(group.idle, 1)",
    "idle = group.idle; heappush(idle, 1)",
    "a, b = group.idle, 1; a.append(1)",
    "waiting = run.waiting; waiting.clear()",
    "waiting = run.waiting; waiting += [1]",
    "waiting = run.waiting; other = waiting; other[0] = 1",
    "(idle := group.idle).append(1)",
    "idle = None if full else group.idle; idle.append(1)",
    "push = group.idle.append; push(1)",
    "clear = lambda: group.idle.clear()",
    "batch.partition.batches.remove(batch)",
    "pipeline.rate.observe(1)",
    "model.estimates[kind].decay()",
    "model.estimates.get(kind).observe(1)",
    "estimate = model.estimates.get(kind); estimate.observe(1)",
    "for estimate in model.estimates.values(): estimate.decay()",
    "for kind, estimate in model.estimates.items(): estimate.decay()",
)


@pytest.mark.parametrize("place", ["{}", "def change():\n {}", "async def change():\n {}", "class A:\n {}"])
@pytest.mark.parametrize("statement", CHANGES)
def test_changes_are_found(statement: str, place: str) -> None:
    source = place.format(statement.replace("; ", "\n" + " " * ("\n" in place)))
    assert len(list(_writes_in(ast.parse(source), {}))) == 1


def test_a_change_in_an_inner_function_is_found_once() -> None:
    source = "def outer():\n idle = group.idle\n def inner():\n  idle.append(1)\n"
    assert [field for _, field in _writes_in(ast.parse(source), {})] == ["idle"]


@pytest.mark.parametrize(
    "statement",
    [
        "self.ready = True",
        "ready = group.ready",
        "group.idle.index(1)",
        "idle = [1]; idle.append(1)",
        "self.rate.add(1)",
    ],
)
def test_other_statements_are_no_changes(statement: str) -> None:
    assert list(_writes_in(ast.parse(statement.replace("; ", "\n")), {})) == []
