"""`make map`: files, lines and imports of every folder, import cycles, the longest files, and the files that a call
enters on its way to `cuGraphLaunch`; the table of folders in docs/architecture.md is made of the same counts.

`python -m tests.map` prints them, `--write` writes the table again, `--json` prints one line as benchmarks do.
"""

from __future__ import annotations

import argparse
import ast
import gc
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from benchmarks.report import report
from tests import walks

ROOT = Path(__file__).parent.parent
DISTRIBUTIONS = {
    "kaas": ROOT,
    "softgpu": ROOT / "softgpu",
    "tvm_backend": ROOT / "compilers" / "tvm_backend",
    "cutlass_blas": ROOT / "libraries" / "cutlass_blas",
}
"""Packages, and the folders in which they stand."""

RUNS = "Runs in programs that make kTasks"
OTHERS = {"tvm_backend": RUNS, "cutlass_blas": f"{RUNS}; `provider` in executors"}
"""Packages that use kaas as any program does, and their processes."""

ORDER = (
    ("softgpu",),
    (
        "errors",
        "store",
        "cache_folders",
        "import_target",
        "near_field",
        "optional_ray",
        "output_files",
        "process_folder",
        "futures",
    ),
    ("share", "config"),
    ("profiles",),
    ("ktask",),
    ("code",),
    ("executor",),
    ("scheduling",),
    ("wire",),
    ("worker",),
    ("pool",),
    ("api",),
    ("models",),
    ("client",),
    ("server",),
    ("kernels", "remote"),
    ("bench",),
    ("papers",),
    ("peers",),
    ("cli",),
)
"""Folders and modules of kaas from the bottom up: each imports its own level and those below."""

TABLES = {
    "kaas.errors": "every error, its fields and its sentence",
    "softgpu.instructions": "every instruction of PTX and what makes code of it",
}
"""Files that may be longer than LINES, and what their rows are."""

LINES, FILES, CALL = 400, 14, 43
"""Lines of a file, files of a folder and files of a warm call, at most."""
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- made by `make map` -->", "<!-- end of what `make map` makes -->"


def modules(package: str) -> dict[str, Path]:
    """Return the modules of a package of this repository, tests inside it left out, by dotted name."""
    folder = DISTRIBUTIONS[package]
    found = {}
    for path in sorted((folder / package).rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if "tests" not in parts and "__pycache__" not in parts:
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = {name: path for package in DISTRIBUTIONS for name, path in modules(package).items()}


def parse(path: Path) -> ast.Module:
    """Return the syntax of a file. The collector of garbage, which would look at each new node again, is paused."""
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


def tree(module: str) -> ast.Module:
    """Return the syntax of a module."""
    return parse(MODULES[module])


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a tree, those in others too; not its expressions, which are most of what it holds."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for statement in getattr(tree, field, ()):
            yield statement
            yield from statements(statement)


@cache
def imports(module: str) -> frozenset[str]:
    """Return what a module imports anywhere in it, inside functions and for types too, as full dotted names."""
    found: set[str] = set()
    for node in statements(tree(module)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
            base = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            inner = (f"{origin}.{alias.name}" for alias in node.names)
            found.update(name if name in MODULES else origin for name in inner)
    return frozenset(found)


def cycles(graph: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node (Tarjan), each sorted; a node that names itself
    is one of its own."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        path.append(node)
        for other in sorted(graph[node] & graph.keys()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in path:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            place = path.index(node)
            members, path[place:] = path[place:], []
            if len(members) > 1 or node in graph[node]:
                found.append(sorted(members))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def level(module: str) -> int:
    """Return the place of a module of kaas, or of softgpu, in ORDER; `kaas` itself stands above all."""
    if module == "kaas":
        return len(ORDER)
    part = module.split(".")[1] if module.startswith("kaas.") else module.split(".")[0]
    places = [place for place, names in enumerate(ORDER) if part in names]
    assert len(places) == 1, f"{module} has no place: give {part} one in ORDER of {__file__}"
    return places[0]


def lines(path: Path) -> int:
    return path.read_text().count("\n")


def files_per_folder() -> Counter[str]:
    """Return the number of files on each level of kaas, folders of policies left out: there each policy is a file."""
    count: Counter[str] = Counter()
    for name, path in MODULES.items():
        if name.split(".")[0] == "kaas":
            count[str(path.parent.relative_to(ROOT))] += 1
    del count["kaas/scheduling/policies"]
    return count


def longest() -> list[tuple[int, str]]:
    """Return lines and names of all files that are no tables, the longest first."""
    return sorted(((lines(path), name) for name, path in MODULES.items() if name not in TABLES), reverse=True)


def parts() -> dict[str, list[str]]:
    """Return the modules of each folder of kaas, and of each other package, from the bottom up."""
    found: dict[str, list[str]] = defaultdict(list)
    for module in sorted((name for name in MODULES if name.startswith(("kaas.", "softgpu"))), key=level):
        names = module.split(".")
        single = names[0] == "kaas" and MODULES[f"kaas.{names[1]}"].name != "__init__.py"
        low, suffix = single and level(module) < level("kaas.ktask"), ".py" if single else ""
        folder = f"kaas/{names[-1] if single else names[1]}{suffix}" if names[0] == "kaas" else names[0]
        found["kaas/*.py" if low else folder].append(module)
    return dict(found)


def imported_parts(part: str) -> list[str]:
    """Return the parts that a part imports, itself left out."""
    of = {module: name for name, members in parts().items() for module in members}
    return sorted({of[other] for module in parts()[part] for other in imports(module) if other in of} - {part})


def purpose(part: str) -> str:
    """Return the first sentence of a folder's docstring."""
    path = DISTRIBUTIONS[part] / part if part in DISTRIBUTIONS else ROOT / part
    if "*" in part:
        return "Modules that all folders need. Used by every process"
    file = path / "__init__.py" if path.is_dir() else path
    docstring = ast.get_docstring(parse(file)) or ""
    return docstring.split("\n\n")[0].replace("\n", " ").rstrip(".")


def folder_table() -> Iterator[str]:
    """Yield the lines of the table of folders from top to bottom, and what each imports."""
    yield "| folder | files | what | imports |"
    yield "| --- | --- | --- | --- |"
    for package, process in OTHERS.items():
        members = [name for name in MODULES if name.split(".")[0] == package]
        used = {other.split(".")[0] for member in members for other in imports(member)} & DISTRIBUTIONS.keys()
        below = ", ".join(f"`{name}`" for name in sorted(used - {package})) or "nothing"
        folder = DISTRIBUTIONS[package].relative_to(ROOT)
        yield f"| `{folder}` | {len(members)} | {purpose(package)}. {process} | {below} |"
    for part, members in reversed(parts().items()):
        below = ", ".join(f"`{name.removeprefix('kaas/')}`" for name in imported_parts(part)) or "nothing"
        yield f"| `{part}` | {len(members)} | {purpose(part)} | {below} |"


def page(text: str) -> str:
    """Return the page with the table as it is to be."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, *folder_table(), END + after])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line, as benchmarks print it")
    parser.add_argument("--write", action="store_true", help="write the table in docs/architecture.md again")
    options = parser.parse_args()
    if options.write:
        PAGE.write_text(page(PAGE.read_text()))
    found = cycles({name: imports(name) for name in MODULES})
    count = files_per_folder()
    if not options.json:
        print(*folder_table(), sep="\n")
        print(
            *(
                f"{sum(lines(MODULES[member]) for member in members):6} lines {part}"
                for part, members in parts().items()
            ),
            sep="\n",
        )
        print(*(f"cycle: {', '.join(members)}" for members in found), sep="\n")
        print(*(f"{size:5} {name}" for size, name in longest()[:20]), sep="\n")
    bars = {
        "cycles": (len(found), "<=", 0),
        "files_on_a_level": (max(count.values()), "<=", FILES),
        "lines_of_a_file": (longest()[0][0], "<=", LINES),
        "files_of_a_call": (len(walks.files_of_a_call(walks.call())), "<=", CALL),
    }
    detail = {
        "files": len(MODULES),
        "lines": sum(map(lines, MODULES.values())),
        "longest": longest()[0][1],
        "fullest": max(count, key=lambda folder: count[folder]),
    }
    report("map", bars, detail, options.json)


if __name__ == "__main__":
    main()
