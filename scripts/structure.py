"""Prints the structure of the packages: import circles, duplicate class names, and each folder's size and level.

    python scripts/structure.py [ROOT]

Every import counts, in functions and under TYPE_CHECKING as well. The exit status is 1 when modules import each other
in a circle or two public classes have the same name.
"""

import argparse
import ast
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

LARGEST_FILES = 12
Graph = Mapping[str, set[str]]


@dataclass(frozen=True)
class Module:
    """A Python file: its dotted name, its path below the root, its lines, imports and public classes."""

    name: str
    path: Path
    lines: int
    imports: frozenset[str]
    classes: tuple[str, ...]

    @property
    def folder(self) -> str:
        """The folder of the file, below the root."""
        return self.path.parent.as_posix()


def read_modules(root: Path) -> list[Module]:
    """All modules of the packages that ROOT/src holds or links to, such as ROOT/src/sluice/gateway."""
    packages = sorted((root / "src").glob("*/*/"))
    files = {_name(file, package): file for package in packages for file in sorted(package.rglob("*.py"))}
    return [_read(name, file, files.keys(), root) for name, file in files.items()]


def _name(file: Path, package: Path) -> str:
    parts = (package.parent.name, package.name, *file.relative_to(package).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def _read(name: str, file: Path, known: AbstractSet[str], root: Path) -> Module:
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text, str(file))
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    imports = frozenset(_imports(tree, package, known)) - {name}
    classes = tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
    return Module(name, file.resolve().relative_to(root.resolve()), text.count("\n"), imports, classes)


def _imports(tree: ast.Module, package: str, known: AbstractSet[str]) -> Iterator[str]:
    """The known modules that a file imports, at any place in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join((*parents, *filter(None, [node.module])))
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                found = submodule if submodule in known else base
                if found in known:
                    yield found


def circles(graph: Graph) -> list[list[str]]:
    """The groups of nodes that reach each other, each sorted, the largest first."""
    reached = {node: _reachable(graph, node) for node in graph}
    groups = {tuple(sorted({node} | {other for other in reached[node] if node in reached[other]})) for node in graph}
    return sorted((list(group) for group in groups if len(group) > 1), key=lambda group: (-len(group), group))


def _reachable(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    open_nodes = [start]
    while open_nodes:
        new = graph[open_nodes.pop()] - found
        found |= new
        open_nodes += new
    return found


def duplicate_classes(modules: Iterable[Module]) -> dict[str, list[str]]:
    """The modules of each public class name that more than one of them defines."""
    homes: dict[str, list[str]] = {}
    for module in modules:
        for name in module.classes:
            homes.setdefault(name, []).append(module.name)
    return {name: found for name, found in sorted(homes.items()) if len(found) > 1}


def levels(graph: Graph) -> list[list[str]]:
    """The nodes by level, the highest first: a node is one level above the highest that it points to.

    Nodes of a circle share a level and are joined with " = ".
    """
    name_of = {node: node for node in graph}
    for circle in circles(graph):
        name_of |= dict.fromkeys(circle, " = ".join(circle))
    below: dict[str, set[str]] = {}
    for node, targets in graph.items():
        below.setdefault(name_of[node], set()).update({name_of[target] for target in targets} - {name_of[node]})
    found: list[list[str]] = []
    while below:
        lowest = sorted(node for node, targets in below.items() if not targets & below.keys())
        found.insert(0, lowest)
        below = {node: targets for node, targets in below.items() if node not in lowest}
    return found


def room_graphs(modules: Sequence[Module]) -> dict[str, dict[str, set[str]]]:
    """For each package, and each folder in it that holds folders, the imports between its rooms.

    Rooms are the folders and the modules beside them.
    """
    paths = {module.name: tuple(module.name.split(".")[1:]) for module in modules}
    holders = {path[:1] for path in paths.values()}
    holders |= {path[:depth] for path in paths.values() for depth in range(1, len(path) - 1)}
    graphs: dict[str, dict[str, set[str]]] = {}
    for module in modules:
        path = paths[module.name]
        for depth in range(1, len(path)):
            holder, room = path[:depth], path[depth]
            if holder not in holders:
                continue
            targets = graphs.setdefault(".".join(holder), {}).setdefault(room, set())
            targets |= {
                other[depth]
                for other in map(paths.__getitem__, module.imports)
                if other[:depth] == holder and len(other) > depth and other[depth] != room
            }
    return graphs


def report(modules: Sequence[Module]) -> Iterator[str]:
    """The lines of the report."""
    found, twice = circles(_graph(modules)), duplicate_classes(modules)
    lines = sum(module.lines for module in modules)
    yield f"files: {len(modules)}, lines: {lines}"
    yield f"import circles: {len(found)}"
    yield from (f"  {' <-> '.join(circle)}" for circle in found)
    yield f"duplicate class names: {len(twice)}"
    yield from (f"  {name}: {', '.join(homes)}" for name, homes in twice.items())
    yield ""
    yield "Rooms by level: a room imports only rooms to its right"
    for holder, rooms in sorted(room_graphs(modules).items()):
        yield f"  {holder}: {' > '.join(' | '.join(level) for level in levels(rooms))}"
    yield ""
    yield "files  lines  folder"
    folders: dict[str, list[Module]] = {}
    for module in modules:
        folders.setdefault(module.folder, []).append(module)
    for folder, inside in sorted(folders.items()):
        yield f"{len(inside):5}  {sum(module.lines for module in inside):5}  {folder}"
    yield ""
    yield "       lines  largest files"
    for module in sorted(modules, key=lambda module: (-module.lines, module.name))[:LARGEST_FILES]:
        yield f"       {module.lines:5}  {module.path}"


def _graph(modules: Sequence[Module]) -> dict[str, set[str]]:
    return {module.name: set(module.imports) for module in modules}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; the exit status is 1 when there is a circle or a duplicate name."""
    parser = argparse.ArgumentParser(description="Print import circles, duplicate class names and folder sizes.")
    parser.add_argument("root", type=Path, nargs="?", default=Path(__file__).resolve().parents[1])
    modules = read_modules(parser.parse_args(arguments).root)
    if not modules:
        print("structure: no modules below src", file=sys.stderr)
        return 1
    print("\n".join(report(modules)))
    return 1 if circles(_graph(modules)) or duplicate_classes(modules) else 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader such as `head` may close the pipe early
    sys.exit(main())
