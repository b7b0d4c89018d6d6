"""Layering rules of this repository, checked on the syntax tree of every file.

core imports neither the layers above it nor rclpy nor carla; sim imports core; ros and cli sit on top. Some libraries
are imported by one file only. Exit code 1 and one line per breach: `file:line: what is imported, and the rule`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

LAYERS: dict[str, frozenset[str]] = {
    "wamdiff2_core": frozenset(),
    "wamdiff2_sim": frozenset({"wamdiff2_core"}),
    "training": frozenset({"wamdiff2_core", "wamdiff2_sim"}),
    "wamdiff2_ros": frozenset({"wamdiff2_core", "wamdiff2_sim"}),
    "wamdiff2_cli": frozenset({"wamdiff2_core", "wamdiff2_sim", "training", "wamdiff2_ros"}),
}
ROS = frozenset({
    "rclpy", "wamdiff2", "sensor_msgs", "nav_msgs", "std_msgs", "geometry_msgs", "lifecycle_msgs", "diagnostic_msgs",
    "rosgraph_msgs", "builtin_interfaces", "launch", "launch_ros",
})  # fmt: skip
# The world's maps are exported with carla's offline map reader, so that package may name it; core may not.
BANNED: dict[str, frozenset[str]] = {"wamdiff2_core": ROS | {"carla"}, "wamdiff2_sim": ROS, "training": ROS | {"carla"}}
ONE_FILE_ONLY = ("flashinfer",)
FORBIDDEN_CALLS = ("eval", "exec")


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, full module name) of every import in the file, also those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module


def breaches(package: str, path: Path, tree: ast.AST) -> Iterator[str]:
    """Breaches of one file against its own package's rules."""
    for line, module in imports(tree):
        top = module.split(".")[0]
        if top in LAYERS and top != package and top not in LAYERS[package]:
            yield f"{path}:{line}: {package} must not import {top}"
        if top in BANNED.get(package, frozenset()):
            yield f"{path}:{line}: {package} must not import {module}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            yield f"{path}:{node.lineno}: {node.func.id}() is not used here"


def check(root: Path) -> list[str]:
    """All breaches below `root`, sorted by file."""
    found: list[str] = []
    importers: dict[str, list[str]] = {name: [] for name in ONE_FILE_ONLY}
    for package in LAYERS:
        for path in sorted((root / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
            shown = path.relative_to(root)
            found.extend(breaches(package, shown, tree))
            used = {module.split(".")[0] for _, module in imports(tree)}
            for name in ONE_FILE_ONLY:
                if name in used:
                    importers[name].append(str(shown))
    for name, files in importers.items():
        if len(files) > 1:
            found.append(f"{name} may be imported by one file, but is by {', '.join(files)}")
    return found


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found = check(root)
    for line in found:
        print(line)
    print(f"layering: {'ok' if not found else f'{len(found)} breaches'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
