"""No order in the core comes from a set, whose order depends on string hashes and addresses: a journal must replay."""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

CORE = Path(__file__).parents[3] / "batcher"
SET_NAMES = {"set", "frozenset", "Set", "AbstractSet", "MutableSet"}
DICT_NAMES = {"dict", "Mapping", "MutableMapping", "defaultdict", "OrderedDict"}
SEQUENCE_NAMES = {"list", "Sequence", "Collection", "Iterable", "Iterator", "deque", "Generator", "Reversible"}
SET_METHODS = {"union", "intersection", "difference", "symmetric_difference"}
"""Methods that only sets have, and that return sets."""
ORDER_FREE = {"len", "any", "all", "set", "frozenset", "bool", "isinstance", *SET_METHODS} | {
    *("update", "difference_update", "intersection_update", "symmetric_difference_update", "isdisjoint"),
    *("issubset", "issuperset"),
}
"""Calls for which the order of an argument does not matter; `update` does for a dict."""
KEYED = {"sorted", "min", "max"}
"""Calls whose result depends on the order only if they have a key, by which different items may be equal."""
ORDERED = {
    *("list", "tuple", "iter", "next", "enumerate", "zip", "dict", "fromkeys", "join", "extend"),
    *("deque", "str", "repr", "accumulate", "islice", "product", "heapify", "reduce"),
    *("extendleft", "groupby", "pairwise", "OrderedDict"),
}
"""Calls whose result has the order of an argument."""


class Type(NamedTuple):
    """A type as far as it matters here: `set` (or anything in the order of one), `dict`, `list`, `tuple`, a class."""

    name: str
    parts: tuple["Type | None", ...] = ()


SET = Type("set")
Types = dict[str, Type | None]
"""The types of the names of a scope."""


class Class(NamedTuple):
    """The types of the attributes of a class, and the functions that are its methods."""

    bases: list[str]
    fields: Types
    methods: dict[str, ast.FunctionDef]


class Program:
    """The classes, functions, aliases and constants of some modules.

    `given_sets` has each (function, parameter) that some call passes a set for.
    """

    def __init__(self, modules: Iterable[ast.Module]) -> None:
        self.aliases: dict[str, ast.expr] = {}
        self.classes: dict[str, Class] = {}
        self.functions: dict[str, list[ast.FunctionDef]] = {}
        self.constants: Types = {}
        self.given_sets: set[tuple[str, str]] = set()
        for module in modules:
            for node in module.body:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    self.aliases[node.targets[0].id] = node.value
        for module in modules:
            for each in ast.walk(module):
                if isinstance(each, ast.ClassDef):
                    self._add_class(each)
                elif isinstance(each, ast.FunctionDef):
                    self.functions.setdefault(each.name, []).append(each)
        for name, value in self.aliases.items():
            self.constants[name] = self.infer(value, {})
        for _ in range(2):  # fields may be made of other fields
            for cls in self.classes.values():
                for method in cls.methods.values():
                    self._add_fields(cls, method)

    def _add_class(self, node: ast.ClassDef) -> None:
        bases = [name for base in node.bases if (name := _last_name(base)) is not None]
        cls = self.classes[node.name] = Class(bases, {}, {})
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                cls.fields[item.target.id] = self.annotated(item.annotation)
            elif isinstance(item, ast.FunctionDef):
                cls.methods[item.name] = item
                if any(_last_name(each) in {"property", "cached_property"} for each in item.decorator_list):
                    cls.fields[item.name] = self.annotated(item.returns)

    def _add_fields(self, cls: Class, method: ast.FunctionDef) -> None:
        types = self.parameters(method, None)
        for node in ast.walk(method):
            if isinstance(node, ast.AnnAssign | ast.Assign):
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                if isinstance(target, ast.Attribute) and _last_name(target.value) == "self":
                    known = self.annotated(node.annotation) if isinstance(node, ast.AnnAssign) else None
                    if known is None and node.value is not None:
                        known = self.infer(node.value, types)
                    if cls.fields.get(target.attr) is None:
                        cls.fields[target.attr] = known

    def annotated(self, node: ast.expr | None) -> Type | None:
        """The type that an annotation names; of a union, that of the first part that is known, a set first."""
        match node:
            case ast.Constant(value=str(text)):
                return self.annotated(ast.parse(text, mode="eval").body)
            case ast.BinOp(op=ast.BitOr()):
                parts = [self.annotated(node.left), self.annotated(node.right)]
                return next((each for each in parts if _is_set(each)), parts[0] or parts[1])
            case ast.Subscript():
                whole = self.annotated(node.value)
                arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                if whole is None:
                    return None
                if whole.name == "tuple" and isinstance(arguments[-1], ast.Constant):
                    return Type("list", (self.annotated(arguments[0]),))  # tuple[X, ...]
                return Type(whole.name, tuple(self.annotated(each) for each in arguments))
            case ast.Name() | ast.Attribute():
                name = _last_name(node) or ""
                for plain, names in (("set", SET_NAMES), ("dict", DICT_NAMES), ("list", SEQUENCE_NAMES)):
                    if name in names:
                        return Type(plain)
                if isinstance(alias := self.aliases.get(name), ast.Subscript):
                    return self.annotated(alias)
                return Type(name)
        return None

    def parameters(self, function: ast.FunctionDef | ast.Lambda, owner: str | None) -> Types:
        """The types of the parameters of a function; of `self` too if it belongs to a class."""
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        types = {each.arg: self.annotated(each.annotation) for each in arguments}
        if owner is not None and "self" in types:
            types["self"] = Type(owner)
        if isinstance(function, ast.FunctionDef):
            name = owner if function.name == "__init__" and owner else function.name
            for each in arguments:
                if (name, each.arg) in self.given_sets:
                    types[each.arg] = Type("set", (types[each.arg] or SET).parts)
        return types

    def field(self, cls: str, attribute: str) -> Type | None:
        """The type of an attribute of a class or its bases."""
        if (known := self.classes.get(cls)) is None:
            return None
        if attribute in known.fields:
            return known.fields[attribute]
        return next((found for base in known.bases if (found := self.field(base, attribute)) is not None), None)

    def method(self, cls: str, name: str) -> ast.FunctionDef | None:
        """The method of a class or its bases."""
        if (known := self.classes.get(cls)) is None:
            return None
        if name in known.methods:
            return known.methods[name]
        return next((found for base in known.bases if (found := self.method(base, name)) is not None), None)

    def infer(self, node: ast.expr, types: Types) -> Type | None:  # noqa: PLR0912 - one case a kind of expression
        """The type of an expression, None if it is not known."""
        match node:
            case ast.Set():
                return SET
            case ast.SetComp():
                return Type("set", (self.infer(node.elt, self._in_comprehension(node.generators, types)),))
            case ast.GeneratorExp() | ast.ListComp():
                inner = self._in_comprehension(node.generators, types)
                unordered = any(_is_set(self.infer(each.iter, inner)) for each in node.generators)
                return Type("set" if unordered else "list", (self.infer(node.elt, inner),))
            case ast.DictComp():
                inner = self._in_comprehension(node.generators, types)
                return Type("dict", (self.infer(node.key, inner), self.infer(node.value, inner)))
            case ast.Name():
                return types[node.id] if node.id in types else self.constants.get(node.id)
            case ast.NamedExpr() | ast.Starred():
                return self.infer(node.value, types)
            case ast.IfExp():
                return _joined([self.infer(node.body, types), self.infer(node.orelse, types)])
            case ast.BoolOp():
                return _joined([self.infer(each, types) for each in node.values])
            case ast.BinOp(op=ast.BitAnd() | ast.BitOr() | ast.BitXor() | ast.Sub()):
                parts = [self.infer(node.left, types), self.infer(node.right, types)]
                if any(part is not None and part.name in {"set", "keys"} for part in parts):
                    return Type("set", next((part.parts for part in parts if part is not None and part.parts), ()))
                return parts[0]
            case ast.BinOp():
                return _joined([self.infer(node.left, types), self.infer(node.right, types)])
            case ast.Constant():
                return Type(type(node.value).__name__)
            case ast.Tuple():
                if any(isinstance(each, ast.Starred) for each in node.elts):
                    return None
                return Type("tuple", tuple(self.infer(each, types) for each in node.elts))
            case ast.Attribute():
                whole = self.infer(node.value, types)
                if whole is not None and whole.name in self.classes:
                    return self.field(whole.name, node.attr)
                if whole is None and any(_is_set(cls.fields.get(node.attr)) for cls in self.classes.values()):
                    return SET  # of an object that is not known, the worst
                return None
            case ast.Subscript():
                whole = self.infer(node.value, types)
                if isinstance(node.slice, ast.Slice):
                    return whole
                if whole is not None and whole.name == "dict":
                    return whole.parts[1] if len(whole.parts) > 1 else None
                if whole is not None and whole.name == "tuple":
                    index = node.slice.value if isinstance(node.slice, ast.Constant) else None
                    return whole.parts[index] if isinstance(index, int) and index < len(whole.parts) else None
                generic = self.annotated(node) if whole is None else None
                return generic if _is_set(generic) and isinstance(node.value, ast.Name) else element(whole)
            case ast.Call():
                return self._result(node, types)
        return None

    def _in_comprehension(self, generators: Iterable[ast.comprehension], types: Types) -> Types:
        inner = dict(types)
        for each in generators:
            inner |= bound(each.target, element(self.infer(each.iter, inner)))
        return inner

    def _result(self, node: ast.Call, types: Types) -> Type | None:  # noqa: PLR0912 - likewise
        called = node.func.value if isinstance(node.func, ast.Subscript) else node.func
        name = _last_name(called) or ""
        first = self.infer(node.args[0], types) if node.args else None
        if isinstance(called, ast.Attribute):
            whole = self.infer(called.value, types)
            if whole is not None and whole.name == "dict":
                key, value = (*whole.parts, None, None)[:2]
                views = {"items": Type("keys", (Type("tuple", (key, value)),)), "keys": Type("keys", (key,))}
                return {**views, "values": Type("list", (value,)), "copy": whole}.get(name, value)
            if name in SET_METHODS or (_is_set(whole) and name == "copy"):
                return Type("set", whole.parts if whole is not None else ())
            if name in {"keys", "items"}:
                return Type("keys")
            if whole is not None and whole.name in self.classes:
                if (method := self.method(whole.name, name)) is not None:
                    return self.annotated(method.returns)
                return None
        if name in {"set", "frozenset"}:
            return Type("set", first.parts if first is not None else ())
        if name in {"map", "filter", "chain"}:  # lazy, and in the order of what they are given
            given = [self.infer(each, types) for each in node.args]
            made = [self.annotated(each.returns) for each in self.functions.get(_last_name(node.args[0]) or "", ())]
            if name != "map":
                made = [element(each) for each in given]
            return Type("set" if any(map(_is_set, given)) else "list", (_joined(made),))
        if name in {"list", "sorted", "tuple", "reversed", "iter"}:
            return Type("list", (element(first),))
        if name in {"min", "max", "next"}:
            return element(first)
        if name in {"len", "int", "sum", "round"}:
            return Type("int")
        if name == "enumerate":
            return Type("list", (Type("tuple", (Type("int"), element(first))),))
        if name == "zip":
            parts = tuple(element(self.infer(each, types)) for each in node.args)
            return Type("list", (Type("tuple", parts),))
        if name in self.classes:
            return Type(name)
        returned = [self.annotated(each.returns) for each in self.functions.get(name, ())]
        return _joined(returned) if returned else None


def element(whole: Type | None) -> Type | None:
    """The type of what an iteration over a type yields."""
    if whole is None or not whole.parts:
        return None
    return _joined(whole.parts) if whole.name == "tuple" else whole.parts[0]


def bound(target: ast.expr, value: Type | None) -> Types:
    """The types of the names that an assignment of a value binds."""
    if isinstance(target, ast.Name):
        return {target.id: value}
    if not isinstance(target, ast.Tuple | ast.List):
        return {}
    parts = value.parts if value is not None and value.name == "tuple" else ()
    parts = parts if len(parts) == len(target.elts) else (None,) * len(target.elts)
    return {
        name: known for each, part in zip(target.elts, parts, strict=True) for name, known in bound(each, part).items()
    }


def _joined(parts: Iterable[Type | None]) -> Type | None:
    """One of some types: a set if one of them is."""
    known = [part for part in parts if part is not None]
    return next((part for part in known if _is_set(part)), known[0] if known else None)


def _is_set(known: Type | None) -> bool:
    return known is not None and known.name == "set"


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


class Finder:
    """Finds the places in a module where an order comes from a set."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.found: list[int] = []

    def scan(self, scope: ast.AST, outer: Types, owner: str | None = None) -> None:
        """Look through a module, class or function, and through what it defines."""
        types = dict(outer)
        if isinstance(scope, ast.FunctionDef):
            types |= self._program.parameters(scope, owner)
        nodes = list(_nodes_of(scope))
        for _ in range(2):  # a name may be bound after its use
            for node in nodes:
                for name, known in self._bindings(node, types).items():
                    types[name] = _joined([known, types.get(name)])
        returned = self._program.annotated(scope.returns) if isinstance(scope, ast.FunctionDef) else None
        for node in nodes:
            self._check_children(node, types, returned)
            if node is not scope and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = node.name if isinstance(node, ast.ClassDef) else None
                self.scan(node, types, inner or (scope.name if isinstance(scope, ast.ClassDef) else None))

    def _bindings(self, node: ast.AST, types: Types) -> Types:
        infer = self._program.infer
        if isinstance(node, ast.Assign):
            value = infer(node.value, types)
            return {name: known for each in node.targets for name, known in bound(each, value).items()}
        if isinstance(node, ast.AnnAssign):
            return bound(node.target, self._program.annotated(node.annotation))
        if isinstance(node, ast.AugAssign | ast.NamedExpr):
            return bound(node.target, infer(node.value, types))
        if isinstance(node, ast.For | ast.comprehension):
            return bound(node.target, element(infer(node.iter, types)))
        return {}

    def _check_children(self, node: ast.AST, types: Types, returned: Type | None) -> None:
        """Record what takes its order from a set; `returned` is the declared result of the function around it."""

        def unordered(value: ast.expr) -> bool:
            return _is_set(self._program.infer(value, types))

        match node:
            case ast.keyword(arg="key", value=ast.Name(id="hash" | "id")):
                self.found.append(node.value.lineno)
                return
            case ast.For() | ast.YieldFrom():
                taken = [node.iter if isinstance(node, ast.For) else node.value]
            case ast.DictComp():
                taken = [each.iter for each in node.generators]
            case ast.FormattedValue():
                taken = [node.value]
            case ast.List() | ast.Tuple():
                taken = [each for each in node.elts if isinstance(each, ast.Starred)]
            case ast.Assign() if any(isinstance(each, ast.Tuple | ast.List) for each in node.targets):
                taken = [node.value]
            case ast.Call():
                taken = list(self._taken_by(node, types, unordered))
            case ast.Return() if node.value is not None and returned is not None and not _is_set(returned):
                taken = [node.value]
            case ast.expr() | ast.stmt() | ast.keyword():
                taken = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.ListComp)]
            case _:
                return
        self.found += [value.lineno for value in taken if unordered(value)]

    def _taken_by(self, node: ast.Call, types: Types, unordered: Callable[[ast.expr], bool]) -> Iterator[ast.expr]:
        """The arguments of a call, or its object, whose order the result has."""
        name = _last_name(node.func) or ""
        if isinstance(node.func, ast.Attribute) and name == "pop" and not node.args:
            yield node.func.value
        if name == "update" and isinstance(node.func, ast.Attribute) and not unordered(node.func.value):
            whole = self._program.infer(node.func.value, types)
            yield from node.args if whole is not None and whole.name == "dict" else ()
        elif name in ORDERED or (name in KEYED and any(each.arg == "key" for each in node.keywords)):
            yield from node.args
        elif name == "sum" and node.args:
            terms = element(self._program.infer(node.args[0], types))
            yield from () if terms is not None and terms.name in {"int", "bool"} else node.args
        elif name not in ORDER_FREE | KEYED:
            yield from (each for each in node.args if isinstance(each, ast.Starred | ast.ListComp))
            self._pass_on(node, name, types)

    def _pass_on(self, node: ast.Call, name: str, types: Types) -> None:
        """Record the parameters that a call passes sets for."""
        infer, functions = self._program.infer, list(self._program.functions.get(name, ()))
        if isinstance(node.func, ast.Attribute) and (whole := infer(node.func.value, types)) is not None:
            method = self._program.method(whole.name, name)
            functions = [] if method is None else [method]
        if (cls := self._program.classes.get(name)) is not None and "__init__" in cls.methods:
            functions.append(cls.methods["__init__"])
        for function in functions:
            names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
            names = names[1:] if names[:1] in (["self"], ["cls"]) else names
            passed = [*zip(names, node.args, strict=False), *((each.arg or "", each.value) for each in node.keywords)]
            for parameter, value in passed:
                if _is_set(infer(value, types)):
                    self._program.given_sets.add((name, parameter))


def _nodes_of(scope: ast.AST) -> Iterator[ast.AST]:
    """The scope and the nodes in it; of what it defines, only the definitions."""
    left = [scope]
    while left:
        node = left.pop()
        yield node
        if node is scope or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            left += reversed(list(ast.iter_child_nodes(node)))


def places(sources: Mapping[str, str], others: Iterable[str] = ()) -> list[str]:
    """Each file and line of some modules where an order comes from a set; they may use classes of `others`."""
    modules = {name: ast.parse(source) for name, source in sources.items()}
    program = Program([*modules.values(), *map(ast.parse, others)])
    while True:
        known = len(program.given_sets)
        found = []
        for name, module in modules.items():
            finder = Finder(program)
            finder.scan(module, {})
            found += [f"{name}:{line}" for line in sorted(set(finder.found))]
        if len(program.given_sets) == known:
            return found


def test_no_order_in_the_core_comes_from_a_set() -> None:
    sources = {f"batcher/{path.relative_to(CORE)}": path.read_text() for path in sorted(CORE.rglob("*.py"))}
    others = [path.read_text() for path in sorted(CORE.with_name("models").rglob("*.py"))]
    assert places(sources, others) == []


SETTING = """
KeyAlias = dict[str, set[str]]
NOTHING = frozenset[str]()

class Base:
    models: frozenset[str] = frozenset()

class Host(Base):
    weights: KeyAlias
    names: list[str]

    def __init__(self, given: set[str] | None) -> None:
        self.given = given
        self.made = {1, 2}
        self.by_name: dict[str, set[str]] = {}

    @property
    def shown(self) -> set[str]: ...

    def held(self) -> frozenset[str]: ...

def size(name: str) -> int: ...
def listed(names: Collection[str]) -> Iterator[str]: return (name for name in names)
def counted(names: Collection[str]) -> int: return len(names)
"""
"""Definitions that the statements below may use."""
ORDERED_BY_A_SET = (
    "for name in names: use(name)",
    "for name in host.models: use(name)",
    "for name in host.given or (): use(name)",
    "for name in host.shown: use(name)",
    "for name in host.held(): use(name)",
    "for name in host.weights['a']: use(name)",
    "for name in host.by_name.get('a', NOTHING): use(name)",
    "for held in host.by_name.values():\n  for name in held: use(name)",
    "for name in {1, 2}: use(name)",
    "for name in table.keys() - names: use(name)",
    "for name in table.keys() & other.keys(): use(name)",
    "for name in host.models.difference(names): use(name)",
    "for name in NOTHING.union(*host.by_name.values()): use(name)",
    "for name in unknown.made: use(name)",
    "copy = names if full else []\n for name in copy: use(name)",
    "use([name for name in names])",
    "other = [name for name in names]",
    "host.names = [name for name in names]",
    "lazy = (name for name in names); use(list(lazy))",
    "use(list(names))",
    "use(tuple(names | {1}))",
    "use(next(iter(names)))",
    "use(names.pop())",
    "use(dict.fromkeys(names))",
    "use({name: 1 for name in names})",
    "use(','.join(names))",
    "use(f'{names}')",
    "use(*names)",
    "use([*names])",
    "first, second = names",
    "yield from names",
    "use(sorted(names, key=len))",
    "use(min(names, key=len))",
    "use(sum(name / 2 for name in names))",
    "use(list(map(size, names)))",
    "use(enumerate(names))",
    "use(sorted(found, key=hash))",
    "found.extend(names)",
    "table.update(names)",
)


@pytest.mark.parametrize("statement", ORDERED_BY_A_SET)
def test_an_order_that_comes_from_a_set_is_found(statement: str) -> None:
    assert len(places({"core": _source(statement)})) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "for name in sorted(names): use(name)",
        "for name in sorted(each for each in host.models if each in names): use(name)",
        "for name in host.names: use(name)",
        "for name in table: use(name)",
        "for name in table.keys(): use(name)",
        "for name in dict.fromkeys(found): use(name)",
        "use(len(names), 'a' in names, any(name for name in names), names <= host.models)",
        "use({name for name in names}, frozenset(names), names | host.models)",
        "use(NOTHING.union(*({name} for name in names)))",
        "use(max(names), min((size(name) for name in names), default=0))",
        "use(sum(size(name) for name in names), sum(map(size, names)))",
        "names.update(host.models); names.discard('a')",
        "use(counted(names))",
    ],
)
def test_what_does_not_depend_on_the_order_is_not_found(statement: str) -> None:
    assert places({"core": _source(statement)}) == []


def test_a_set_is_followed_into_the_function_that_takes_it() -> None:
    line = next(number for number, text in enumerate(SETTING.splitlines(), 1) if text.startswith("def listed"))
    assert places({"core": _source("use(listed(names))")}) == [f"core:{line}"]


def _source(statement: str) -> str:
    body = statement.replace("; ", "\n ")
    parameters = "host: Host, names: set[str], table: dict[str, int], other: dict[str, int], found: list[str]"
    return f"{SETTING}\ndef tried({parameters}):\n {body}\n"
