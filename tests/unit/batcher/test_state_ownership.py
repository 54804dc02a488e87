"""Each field of the core's records has one writer: the file that the table in `batcher/state.py` names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

CORE = Path(__file__).parents[3] / "batcher"
_TABLE_ROW = re.compile(r"^(\w+)\s+([\w/]+(?:\.py|/))\s+(\w[\w ]*)$", re.MULTILINE)
_MUTATORS = {
    *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"),
    *("add", "discard", "update", "setdefault", "popitem", "difference_update"),
    *("heappush", "heappop", "heapify", "heapreplace"),
}
OTHER_OBJECTS = {
    ("live", "queues/"),  # of a queue or a flow
    ("rows", "queues/"),
    ("rows", "reservations/timeline.py"),  # of a slot
    ("models", "reservations/"),  # of a timeline
    ("kind", "reservations/"),
    ("price", "reservations/"),
    ("rows", "scheduler/scheduler.py"),  # of the rate of arrivals
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
            found += [Write(file, node.lineno, field) for node, field in _writes_in(ast.parse(path.read_text()))]
    return found


def _writes_in(tree: ast.Module) -> Iterator[tuple[ast.Attribute | ast.Name, str]]:
    for scope in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        aliases = {
            target.id: node.value
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(scope):
            for target in _changed(node):
                place: ast.expr = target
                while isinstance(place, ast.Subscript):
                    place = place.value
                if (isinstance(place, ast.Name) and place is not target) or _is_mutated(node, place):
                    place = aliases.get(place.id, place) if isinstance(place, ast.Name) else place
                if isinstance(place, ast.Attribute) and not _is_own(place):
                    yield place, place.attr


def _changed(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement or call assigns, deletes or mutates."""
    if isinstance(node, ast.Assign | ast.Delete):
        for target in node.targets:
            yield from target.elts if isinstance(target, ast.Tuple) else (target,)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        yield node.target
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
            yield node.func.value
        elif isinstance(node.func, ast.Name) and node.func.id in _MUTATORS and node.args:
            yield node.args[0]


def _is_mutated(node: ast.AST, place: ast.expr) -> bool:
    return isinstance(node, ast.Call | ast.AugAssign) and isinstance(place, ast.Name)


def _is_own(place: ast.Attribute) -> bool:
    """True for a field of `self`, which is no record."""
    return isinstance(place.value, ast.Name) and place.value.id == "self"


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


@pytest.mark.parametrize(
    "statement",
    [
        "partition.ready = True",
        "model.outstanding += 1",
        "request.entries.append(entry)",
        "del group.partitions[1]",
        "group.partitions[1] = partition",
        "stage, request.running = 1, 2",
        "idle = group.idle\n    heappush(idle, 1)",
        "waiting = run.waiting\n    waiting.clear()",
        "batch.partition.batches.remove(batch)",
    ],
)
def test_changes_are_found(statement: str) -> None:
    tree = ast.parse(f"def change():\n    {statement}\n")
    assert len(list(_writes_in(tree))) == 1
