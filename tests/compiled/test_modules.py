"""The modules that are compiled, and those that are not."""

import ast
from collections.abc import Iterator

from hatch_build import COMPILED, PACKAGES, compiled_modules
from tests.support.packaging import ROOT


def classes(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """The names of the classes in a module, and those of their bases."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, [ast.unparse(base).partition("[")[0] for base in node.bases]


def imported(tree: ast.Module) -> dict[str, str]:
    """The modules of the names that a module imports."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {alias.name: str(node.module) for node in found for alias in node.names}


def test_no_interpreted_class_inherits_from_a_compiled_one() -> None:
    """Such a class could be defined, but none of its objects could be made."""
    compiled = set(compiled_modules(ROOT))
    native = set()
    for file in compiled:
        module = ".".join(("sluice", *file.relative_to(ROOT).with_suffix("").parts))
        native |= {(module, name) for name, bases in classes(ast.parse(file.read_text())) if "Protocol" not in bases}
    found = []
    for file in [each for package in PACKAGES for each in (ROOT / package).rglob("*.py") if each not in compiled]:
        tree = ast.parse(file.read_text())
        modules = imported(tree)
        for name, bases in classes(tree):
            found += [(str(file), name, base) for base in bases if (modules.get(base), base) in native]
    assert found == []


def test_all_that_is_to_be_compiled_is_found_once() -> None:
    assert all((ROOT / name).exists() for name in COMPILED)
    modules = list(compiled_modules(ROOT))
    assert len(modules) == len(set(modules))
