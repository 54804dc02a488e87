"""`scripts/structure.py` on small trees that it has to accept or refuse."""

from pathlib import Path

import pytest

from scripts.structure import main

CLEAN = {
    "src/food/kitchen/__init__.py": '"""The kitchen."""\n',
    "src/food/kitchen/pantry/flour.py": "class Flour:\n    pass\n",
    "src/food/kitchen/stove/oven.py": "import os\nfrom food.kitchen.pantry.flour import Flour\nclass Oven:\n    pass\n",
    "src/food/hall/table.py": "import food.kitchen.stove.oven\nfrom food.kitchen.stove import oven\n",
}


def tree(root: Path, **changed: str) -> str:
    """Write the clean tree with other texts of some files, which are given by their stems."""
    for name, text in CLEAN.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(changed.get(path.stem, text))
    return str(root)


def test_a_clean_tree_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([tree(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["files: 4, lines: 9", "import circles: 0", "duplicate class names: 0"]
    assert "  hall: table" in lines
    assert "  kitchen: stove > pantry" in lines
    assert "    1      4  src/food/kitchen/stove" in lines
    assert lines[lines.index("       lines  largest files") + 1] == "           4  src/food/kitchen/stove/oven.py"


def test_rooms_are_shown_at_every_depth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tree(tmp_path, oven="from food.kitchen.stove.gas import pipe\n")
    for name, text in {
        "gas/pipe.py": "import food.kitchen.stove.knob\n",
        "gas/valves/valve.py": "import food.kitchen.stove.gas.pipe\n",
        "knob.py": "",
    }.items():
        path = tmp_path / "src/food/kitchen/stove" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert main([root]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("  kitchen.stove: oven > gas > knob")
    assert lines[first + 1] == "  kitchen.stove.gas: valves > pipe"
    assert not any(line.startswith("  kitchen.pantry:") for line in lines)


def test_packages_behind_links_are_read_as_if_they_lay_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree(tmp_path)
    (tmp_path / "src/food/kitchen").rename(tmp_path / "kitchen")
    (tmp_path / "src/food/kitchen").symlink_to("../../kitchen")
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "files: 4, lines: 9"
    assert "  kitchen: stove > pantry" in lines
    assert "    1      2  kitchen/pantry" in lines


@pytest.mark.parametrize(
    "back",
    [
        "from food.kitchen.stove.oven import Oven\n",
        "from food.kitchen.stove import oven\n",
        "from ..stove import oven\n",
        "import food.kitchen.stove.oven as oven\n",
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from food.kitchen.stove.oven import Oven\n",
        "def heat() -> None:\n    from food.kitchen.stove.oven import Oven\n",
    ],
)
def test_any_import_back_makes_a_circle(tmp_path: Path, back: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([tree(tmp_path, flour=back)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == ["import circles: 1", "  food.kitchen.pantry.flour <-> food.kitchen.stove.oven"]
    assert "  kitchen: pantry = stove" in lines


def test_a_circle_through_several_files_is_one_circle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([tree(tmp_path, flour="import food.hall.table\n")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "  food.hall.table <-> food.kitchen.pantry.flour <-> food.kitchen.stove.oven"


def test_a_class_name_that_stands_for_two_things_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([tree(tmp_path, table="class Oven:\n    pass\n\n\nclass _Leg:\n    pass\n")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == ["duplicate class names: 1", "  Oven: food.hall.table, food.kitchen.stove.oven"]


def test_private_and_nested_classes_may_share_a_name(tmp_path: Path) -> None:
    inner = "class _Oven:\n    class Flour:\n        pass\n"
    assert main([tree(tmp_path, table=inner)]) == 0


def test_a_folder_without_packages_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert "no modules" in capsys.readouterr().err
