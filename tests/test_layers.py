"""Imports point down only, and each foreign library has few importers."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import kaas
from tests.map import (
    DISTRIBUTIONS,
    FILES,
    LINES,
    MODULES,
    PAGE,
    TABLES,
    cycles,
    files_per_folder,
    imports,
    level,
    longest,
    page,
    statements,
    tree,
)

ROOT = Path(__file__).parent.parent

PEERS = {"kaas.peers"}
"""Programs of others' systems: they import what they measure."""

ALLOWED_IMPORTERS = {
    "cuda": {
        "kaas.executor.device",
        "kaas.code.nvrtc",
        "kaas.papers.small.etasks",
        "kaas.papers.full.testbed",
        "softgpu.runtime_calls",
    },
    "ray": {
        "kaas.api.dag",
        "kaas.api.ray_session",
        "kaas.pool.on_ray.hosts",
        "kaas.worker.etask_actor",
        "kaas.worker.held.etask_constants",
        "kaas.worker.held.holder_actor",
        "kaas.pool.on_ray.holders",
        "kaas.pool.on_ray.etask_transport",
        "kaas.wire.etask_values",
        "kaas.pool.on_ray.cluster",
        "kaas.pool.on_ray.backend",
        "kaas.pool.on_ray.ray_metrics",
        "kaas.pool.on_ray.pool_actor",
        "kaas.pool.on_ray.programs",
        "kaas.worker.executor_actor",
        "kaas.wire.resident",
        "kaas.pool.on_ray.fetching",
        "kaas.optional_ray",
    },
    "llvmlite": {"softgpu"},
    "matplotlib": {
        "kaas.papers.plots",
        "kaas.papers.scheduling.plots",
        "kaas.bench.report",
        "kaas.bench.profiling.figure",
    },
    "triton": {"kaas.code.triton"},
    "numba": {"kaas.code.numba"},
    "numba_cuda": {"kaas.code.numba"},
    "cupy": {"kaas.code.cupy"},
    "py_landlock": {"kaas.worker.sandbox"},
    "prometheus_client": {"kaas.server.metrics_server"},
    "safetensors": {"kaas.models.constants_file", "kaas.models.model_file"},
    "cryptography": {"kaas.server.clients.allow", "kaas.wire.signing"},
    "zmq": {
        "kaas.wire.connections.zmq_reader",
        "kaas.wire.connections.zmq_listener",
        "kaas.wire.connections.zmq_connection",
        "kaas.wire.key_files",
        "kaas.client",
        "kaas.server.clients",
    },
    "mlperf_loadgen": {"kaas.bench.mlperf.loadgen"},
    "onnx": {"kaas.bench.networks"},
    "torch": set[str](),
    "tvm": set[str](),
    "tvm_ffi": set[str](),
    "tvm_backend": set[str](),
    "compilers": set[str](),
    "cutlass_blas": set[str](),
    "cutlass_library": set[str](),
    "libraries": set[str](),
    "benchmarks": set[str](),
    "examples": set[str](),
    "tests": set[str](),
}
"""Foreign package -> the modules, or packages with all they hold, that may import it."""

DECIDERS = ("kaas.scheduling.events", "kaas.scheduling.decisions", "kaas.scheduling.candidates",
            "kaas.scheduling.policies", "kaas.scheduling.checks", "kaas.scheduling.checked_worker",
            "kaas.scheduling.raised_at", "kaas.scheduling.repeated_names", "kaas.scheduling.simulation",
            "kaas.scheduling.sharing", "kaas.scheduling.comparing.figures",
            "kaas.executor.cache.cache", "kaas.executor.cache.ranges", "kaas.executor.cache.reservation",
            "kaas.executor.cache.tiers", "kaas.executor.cache.eviction", "kaas.executor.plan.arena")  # fmt: skip
"""Modules that decide: values in, values out. No clock, no chance, no environment, no event loop, no device."""

SEEDED = {"kaas.scheduling.simulation.draws"}
"""The exception: chance that comes from a scenario's seed alone."""

PURE = ("kaas.config", "kaas.errors", "kaas.ktask", "kaas.share")
"""Values that they may use."""

NOT_FOR_DECIDERS = {"asyncio", "cuda", "os", "random", "ray", "secrets", "socket", "threading", "time", "zmq"}


SHARED_CLASS_NAMES = {
    "Access", "Address", "Binding", "Block", "Builder", "CompileError", "Device", "Function", "Graph", "Input",
    "InvalidModel", "InvalidOption", "Kernel", "Launch", "Measured", "Options", "Parameter", "Part", "Place", "Plan",
    "Progress", "Register", "Scalar", "Step", "Store", "Symbol", "Target", "Tensor", "Value", "Variable", "Vector",
}  # fmt: skip
"""Public class names that two distributions have: `kaas.Function` is a registered kTask, softgpu's one of PTX."""

TYPE = ast.Subscript | ast.BinOp | ast.Name
ALIAS = re.compile(r"_*[A-Z]+[a-z]\w*")
"""A type's other name, as in `Matrix = np.ndarray[...]`; names of constants have no small letters."""

OUR_MODULES = [name for name in MODULES if name.split(".")[0] in ("kaas", "softgpu")]
OTHER_MODULES = [name for name in MODULES if name not in OUR_MODULES]
"""Those of kaas-gpu-tvm and kaas-gpu-blas, which use kaas as any program does, by its public names."""


@cache
def names_of(module: str) -> tuple[list[str], list[str]]:
    """Return the names of a module's classes, and its other names of types."""
    classes, aliases = [], []
    for node in statements(tree(module)):
        if isinstance(node, ast.ClassDef):
            classes.append(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, TYPE):
            aliases.append(ast.unparse(node.targets[0]))
    return classes, [name for name in aliases if ALIAS.fullmatch(name)]


def class_names(package: str, *, aliases: bool = False) -> dict[str, list[str]]:
    """Return the files of each class name of a distribution, tests left out. aliases: types' other names, too."""
    found: dict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        if within(module, {package}):
            for names in names_of(module)[: 1 + aliases]:
                for name in names:
                    found[name].append(module)
    return found


def within(module: str, packages: set[str] | tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def test_imports_point_down() -> None:
    assert not {module: up for module in OUR_MODULES if (up := upward(module))}


def upward(module: str) -> set[str]:
    """Return the imports of a module that lie above it."""
    ours = {name for name in imports(module) if within(name, ("kaas", "softgpu"))}
    up = {name for name in ours if level(name) > level(module)}
    # the command line is written with the public names
    return up - {"kaas"} if within(module, ("kaas.cli",)) else up


def test_no_files_import_each_other_in_a_circle() -> None:
    """Neither at the top of a file, nor inside a function, nor for types."""
    assert cycles({name: imports(name) for name in MODULES}) == []


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c", "x"}, "c": {"a"}, "d": {"d"}, "e": {"a", "f"}, "f": set()}
    assert cycles({name: frozenset(others) for name, others in graph.items()}) == [["a", "b", "c"], ["d"]]


def test_no_folder_is_crowded_and_no_file_is_long() -> None:
    assert not {folder: count for folder, count in files_per_folder().items() if count > FILES}
    assert not [(name, count) for count, name in longest() if count > LINES]
    assert TABLES.keys() <= MODULES.keys()


@pytest.mark.parametrize("package", DISTRIBUTIONS)
def test_a_class_name_stands_for_one_thing(package: str) -> None:
    """No two classes or aliases of types of a distribution have one name, with or without an underscore."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, files in class_names(package, aliases=True).items():
        places[name.lstrip("_")] += files
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_few_public_class_names_occur_in_two_distributions() -> None:
    """Each distribution has its own field, in which these names are the usual ones. The list may only shrink."""
    users = Counter(name for package in DISTRIBUTIONS for name in class_names(package) if not name.startswith("_"))
    assert {name for name, count in users.items() if count > 1} <= SHARED_CLASS_NAMES


def test_the_table_of_folders_is_of_the_code() -> None:
    assert page(PAGE.read_text()) == PAGE.read_text(), "`make map` draws it again"


def test_foreign_packages_have_few_importers() -> None:
    assert not {
        (module, name)
        for module in OUR_MODULES
        for name in imports(module)
        for package, importers in ALLOWED_IMPORTERS.items()
        if within(name, {package}) and not within(module, importers | PEERS)
    }


def test_modules_that_decide_are_pure() -> None:
    deciders = [module for module in OUR_MODULES if within(module, DECIDERS) and module not in SEEDED]
    assert len(deciders) > len(DECIDERS)
    uses = [(module, name) for module in deciders for name in imports(module)]
    assert not [use for use in uses if within(use[1], NOT_FOR_DECIDERS)]
    assert not [use for use in uses if within(use[1], {"kaas"}) and not within(use[1], (*DECIDERS, *PURE))]


@pytest.mark.processes
def test_importing_kaas_is_light() -> None:
    program = "import kaas, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(ended.stdout.split()) & {"asyncio", "cuda", "llvmlite", "ray", "rich", "typer", "zmq"}


def names_of_kaas(tree: ast.AST) -> Iterator[str]:
    """Every name of kaas that a file uses, as it is written there, imported for types too: `kaas.pool.core.core`."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if within(alias.name, {"kaas"}) and alias.name != "kaas")
            case ast.ImportFrom(module="kaas", level=0, names=names):
                yield from (f"kaas.{alias.name}" for alias in names)
            case ast.ImportFrom(module=str(origin), level=0) if within(origin, {"kaas"}):
                yield origin
            case ast.Attribute(value=ast.Name(id="kaas"), attr=attribute):
                yield f"kaas.{attribute}"


def test_compilers_and_libraries_use_public_names() -> None:
    public = {f"kaas.{name}" for name in kaas.__all__}
    assert not {module: inside for module in OTHER_MODULES if (inside := {*names_of_kaas(tree(module))} - public)}


@pytest.mark.processes
def test_making_kernels_of_the_blas_library_is_light() -> None:
    """Neither the names of its kernels nor the making of them needs a device, Ray, arrays or a compiler."""
    program = """
import cutlass_blas, cutlass_blas.provider, kaas, sys
cutlass_blas.gemm(*(kaas.Buffer(name, (8, 8), "float32") for name in "abc"))
print(*{name.partition(".")[0] for name in sys.modules})
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy = {"asyncio", "cuda", "cutlass_library", "llvmlite", "ml_dtypes", "numpy", "ray", "scipy", "tvm"}
    assert not set(ended.stdout.split()) & heavy


def test_names_of_kaas_are_found_however_they_are_written() -> None:
    program = """
import kaas, kaas.pool.core.core
from kaas import KTask
from kaas.executor.plan.plan import Plan
from .kaas import mine
def late(): return kaas.Buffer, other.kaas
"""
    used = {"kaas.pool.core.core", "kaas.KTask", "kaas.executor.plan.plan", "kaas.Buffer"}
    assert set(names_of_kaas(ast.parse(program))) == used
