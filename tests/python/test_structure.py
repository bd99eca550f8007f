"""The rooms of jax_moye/: who imports whom, one way only, and how long a file is.

Every import counts, inside functions and under TYPE_CHECKING, too: none may hide a circle or an import that goes up.
"""

import ast
import functools
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parents[2] / "jax_moye"
# From the ground up: a room imports those before it. "base" are modules beside the rooms that any of them may use,
# "jax_moye" is what a user imports, and "__main__" the command line.
ROOMS = (
    "base",
    "layout",
    "_kernels",
    "_timing",
    "_selection",
    "_primitives",
    "_api",
    "contrib",
    "_inspect",
    "_tune",
    "jax_moye",
    "_bench",
    "__main__",
)
BASE = ("_checkout", "_command_line", "_compat", "_format", "_log", "_optional")
SURFACE = ("jax_moye", "jax_moye.checkpoint_policies")
MOST_LINES = 600
MOST_FLOORS = 9
MOST_ROOM_ARROWS = 60  # pairs of a room and another one that it imports from
# Pairs of a file and another room that it imports from, but for "base", which any may, and "jax_moye", which gathers.
MOST_FILE_ARROWS = 130
# The tutorials' pages import the ladder as one module.
GATHERS = ("jax_moye._bench.ladder",)


def room_of(module: str) -> str:
    if module in SURFACE:
        return "jax_moye"
    room = module.split(".")[1]
    return "base" if room in BASE else room


@functools.cache
def modules() -> dict[str, pathlib.Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imports_of(path: pathlib.Path) -> set[str]:
    """The modules of jax_moye that a file imports. Compiled ones are of no room."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports name the package"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules() or "._moye_" in name else node.module for name in names}
    return found & modules().keys()


@functools.cache
def graph() -> dict[str, frozenset[str]]:
    """Modules by the modules that import them; layout/ is a room of its own order, and only its name counts."""
    outside = {name: path for name, path in modules().items() if not name.startswith("jax_moye.layout.")}
    return {
        name: frozenset("jax_moye.layout" if x.startswith("jax_moye.layout.") else x for x in imports_of(path)) - {name}
        for name, path in outside.items()
    }


@functools.cache
def rooms() -> dict[str, frozenset[str]]:
    """The rooms that each room imports from."""
    found: dict[str, set[str]] = {room: set() for room in ROOMS}
    for name, imported in graph().items():
        found[room_of(name)] |= {room_of(other) for other in imported} - {room_of(name)}
    return {room: frozenset(others) for room, others in found.items()}


def circle(nodes: dict[str, frozenset[str]]) -> list[str]:
    """Nodes that lead from one to the next and back; empty where there are none."""
    done: set[str] = set()

    def search(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for other in sorted(nodes[node]):
            if found := search(other, [*path, node]):
                return found
        done.add(node)
        return []

    return next((found for node in nodes if (found := search(node, []))), [])


def floors(nodes: dict[str, frozenset[str]]) -> int:
    """The longest way down, in nodes."""

    @functools.cache
    def height(node: str) -> int:
        return 1 + max(map(height, nodes[node]), default=0)

    return max(map(height, nodes))


def test_every_file_is_in_a_room():
    assert {room_of(name) for name in modules()} == set(ROOMS)


def test_no_circles():
    assert circle({"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("b")}) == ["b", "c", "b"]
    assert circle(graph()) == []
    assert circle(rooms()) == []


def test_imports_go_down():
    up = [
        f"{name} imports {other}"
        for name, imported in graph().items()
        for other in sorted(imported)
        if ROOMS.index(room_of(other)) > ROOMS.index(room_of(name))
    ]
    assert up == []


def test_few_floors_and_arrows():
    assert floors({"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset()}) == 3
    assert floors(rooms()) <= MOST_FLOORS
    assert sum(map(len, rooms().values())) <= MOST_ROOM_ARROWS
    of_files = {
        (name, room_of(other))
        for name, imported in graph().items()
        for other in imported
        if room_of(name) not in (room_of(other), "jax_moye") and room_of(other) != "base"
    }
    assert len(of_files) <= MOST_FILE_ARROWS


@pytest.mark.parametrize("room", [room for room in ROOMS if room.startswith("_") and room != "__main__"])
def test_a_room_has_a_docstring_and_nothing_else(room):
    (docstring,) = ast.parse((PACKAGE / room / "__init__.py").read_text()).body
    assert isinstance(docstring, ast.Expr)
    text = docstring.value.value.lower()
    assert "know" in text, "it says what the room may know"
    assert " not " in text or "nothing" in text, "and what it may not"


def test_rooms_export_nothing_of_others():
    """A name is imported from where it is defined: `name as name` and `__all__` are jax_moye/__init__.py's."""
    for name, path in modules().items():
        if room_of(name) in ("jax_moye", "layout", "contrib") or name in GATHERS:
            continue
        tree = ast.parse(path.read_text())
        defined = {x.id for x in ast.walk(tree) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
        assert "__all__" not in defined, name
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                assert not [alias.name for alias in node.names if alias.asname == alias.name], name


@pytest.mark.parametrize("name", modules())
def test_files_are_short(name):
    assert len(modules()[name].read_text().splitlines()) <= MOST_LINES


# Files whose tests have other names: those of the surface and of the whole.
TESTED_AS = {
    "__main__": "tests/python/test_main.py",
    "_checkout": "tests/build/test_checkout.py",
    "_command_line": "tests/python/test_command_line.py",
    "_compat": "tests/python/test_compat.py",
    "_format": "tests/python/test_format.py",
    "_optional": "tests/python/test_optional.py",
    "_log": "tests/python/test_log.py",
    "checkpoint_policies": "tests/python/_api/test_checkpoint_policies.py",
}


@pytest.mark.parametrize("name", [name for name, path in modules().items() if path.name != "__init__.py"])
def test_every_module_has_a_file_of_tests(name):
    """Of its own name in the folder of its room; layouts are tested by law and by oracle, kernels' facts all alike."""
    _, *folders, module = name.split(".")
    if folders[:1] == ["layout"]:
        return
    path = TESTED_AS.get(module, "") if not folders else "/".join(["tests/python", *folders, f"test_{module}.py"])
    assert (PACKAGE.parent / path).is_file(), path
