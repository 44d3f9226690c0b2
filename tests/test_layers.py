"""Imports point down only, and each foreign library has few importers."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import kaas

ROOT = Path(__file__).parent.parent

LAYERS = [
    {"kaas.arguments", "kaas.caches", "kaas.codec", "kaas.config", "kaas.constants_file", "kaas.dlpack", "kaas.draw",
     "kaas.dtypes", "kaas.elf", "kaas.entries", "kaas.error_codec", "kaas.errors", "kaas.graph", "kaas.images",
     "kaas.kernel", "kaas.kernels", "kaas.launch", "kaas.library", "kaas.literals", "kaas.model_file", "kaas.provided",
     "kaas.request", "kaas.store", "kaas.symbols", "kaas.targets", "kaas.variant",
     "kaas.with_ray"},
    {"kaas.softgpu"},
    {"kaas.makers"},
    {"kaas.executor"},
    {"kaas.pool"},
    {"kaas.futures", "kaas.holds", "kaas.receiving"},
    {"kaas.asked"},
    {"kaas.session_calls"},
    {"kaas.session"},
    {"kaas.process_session", "kaas.ray_session"},
    {"kaas.attached"},
    {"kaas.dag", "kaas.function"},
    {"kaas.api", "kaas.calls"},
    {"kaas.caching", "kaas.etasks", "kaas.model"},
    {"kaas.remote"},
    {"kaas.demo", "kaas.cli", "kaas.code_command", "kaas.compile_command", "kaas.file_commands", "kaas.keys_command",
     "kaas.observe_commands", "kaas.policy_commands", "kaas.serve_command", "kaas.state_command"},
]  # fmt: skip
"""Packages and modules from the bottom up; a module imports its own layer and those below. `kaas` itself, the list of
public names, stands above all."""

ALLOWED_IMPORTERS = {
    "cuda": {"kaas.executor.device", "kaas.makers.nvrtc", "kaas.softgpu.runtime_calls"},
    "ray": {
        "kaas.dag",
        "kaas.ray_session",
        "kaas.pool.adoption",
        "kaas.pool.etask_actor",
        "kaas.pool.etask_transport",
        "kaas.pool.values",
        "kaas.pool.ray_cluster",
        "kaas.pool.ray_ground",
        "kaas.pool.ray_metrics",
        "kaas.pool.ray_pool",
        "kaas.pool.ray_hosts",
        "kaas.pool.executor_actor",
        "kaas.pool.resident",
        "kaas.pool.results",
        "kaas.with_ray",
    },
    "llvmlite": {"kaas.softgpu"},
    "triton": {"kaas.makers.triton"},
    "numba": {"kaas.makers.numba"},
    "numba_cuda": {"kaas.makers.numba"},
    "cupy": {"kaas.makers.cupy"},
    "py_landlock": {"kaas.pool.sandbox"},
    "prometheus_client": {"kaas.remote.metrics"},
    "safetensors": {"kaas.constants_file", "kaas.model_file"},
    "cryptography": {"kaas.remote.allow", "kaas.remote.signing"},
    "zmq": {"kaas.pool.drain", "kaas.pool.node_door", "kaas.pool.node_line", "kaas.remote"},
    "onnx": set[str](),
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

DECIDERS = ("kaas.pool.events", "kaas.pool.policies", "kaas.pool.checked", "kaas.pool.simulator",
            "kaas.pool.simulation", "kaas.executor.cache", "kaas.executor.ranges", "kaas.executor.tiers",
            "kaas.executor.eviction", "kaas.executor.arena")  # fmt: skip
"""What decides: values in, values out. No clock, no chance, no environment, no event loop, no device."""

NOT_FOR_DECIDERS = {"asyncio", "cuda", "os", "random", "ray", "secrets", "socket", "threading", "time", "zmq"}


def name_of(path: Path, root: Path = ROOT) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted((ROOT / "kaas").rglob("*.py"))}

OTHERS = [ROOT / "compilers" / "tvm_backend", ROOT / "libraries" / "cutlass_blas"]
"""Where the distributions kaas-gpu-tvm and kaas-gpu-blas stand: they use kaas as anybody does, by its public names."""

OTHER_MODULES = {
    name_of(path, folder): path for folder in OTHERS for path in sorted((folder / folder.name).rglob("*.py"))
}


def within(module: str, packages: set[str] | tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


@cache
def imports(module: str) -> frozenset[str]:
    """Everything a module imports at run time, inside functions too, as full dotted names of modules."""
    found: set[str] = set()
    for node in run_time_nodes(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
            base = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            inner = (f"{origin}.{alias.name}" for alias in node.names)
            found.update(name if name in MODULES else origin for name in inner)
    return frozenset(found)


def run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        yield from run_time_nodes(node)


def layer(module: str) -> int:
    if module == "kaas":
        return len(LAYERS)
    places = [level for level, members in enumerate(LAYERS) if within(module, members)]
    assert len(places) == 1, f"{module} stands in no layer: give it a place in LAYERS"
    return places[0]


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    up = {name for name in imports(module) if within(name, {"kaas"}) and layer(name) > layer(module)}
    if layer(module) == len(LAYERS) - 1:
        up.discard("kaas")  # the top layer is written with the public names
    assert not up


@pytest.mark.parametrize("module", MODULES)
def test_foreign_packages_have_few_importers(module: str) -> None:
    wrong = {
        name
        for name in imports(module)
        for package, importers in ALLOWED_IMPORTERS.items()
        if within(name, {package}) and not within(module, importers)
    }
    assert not wrong


@pytest.mark.parametrize("module", [module for module in MODULES if within(module, DECIDERS)])
def test_what_decides_is_pure(module: str) -> None:
    assert not {name for name in imports(module) if within(name, NOT_FOR_DECIDERS)}
    ours = {name for name in imports(module) if within(name, {"kaas"})}
    assert all(layer(name) == 0 or within(name, DECIDERS) for name in ours)


def test_importing_kaas_is_light() -> None:
    program = "import kaas, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(ended.stdout.split()) & {"asyncio", "cuda", "llvmlite", "ray", "rich", "typer", "zmq"}


def names_of_kaas(tree: ast.AST) -> Iterator[str]:
    """Every name of kaas that a file uses, as it is written there, imported for types too: `kaas.pool.core`."""
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


@pytest.mark.parametrize("module", OTHER_MODULES)
def test_compilers_and_libraries_use_public_names(module: str) -> None:
    public = {f"kaas.{name}" for name in kaas.__all__}
    assert set(names_of_kaas(ast.parse(OTHER_MODULES[module].read_text()))) <= public


def test_making_kernels_of_the_blas_library_is_light() -> None:
    """Whoever makes its kernels needs no device, no Ray, no arrays and no compiler; nor does who names them."""
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
import kaas, kaas.pool.core
from kaas import KTask
from kaas.executor.plan import Plan
from .kaas import mine
def late(): return kaas.Buffer, other.kaas
"""
    used = {"kaas.pool.core", "kaas.KTask", "kaas.executor.plan", "kaas.Buffer"}
    assert set(names_of_kaas(ast.parse(program))) == used
