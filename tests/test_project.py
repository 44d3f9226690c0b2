"""Promises about the project's own files: locks, targets, documentation, modules that state their purpose."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.map import parse

ROOT = Path(__file__).parent.parent
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
FOLDERS = ("kaas", "softgpu", "compilers", "libraries", "benchmarks", "examples", "tests")
SOURCES = sorted(path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "softgpu").rglob("*.md")),
]
OTHERS = ("softgpu", "compilers/tvm_backend", "libraries/cutlass_blas")
"""Folders of the other distributions."""


def locked(path: Path) -> dict[str, str]:
    """name -> what is pinned there, without its hashes."""
    pins = re.findall(r"^([a-z0-9][a-z0-9._-]*)==(\S+)", path.read_text(), re.MULTILINE)
    return dict(pins)


def other(folder: str) -> dict[str, Any]:
    """Return the metadata of the distribution in a folder."""
    project: dict[str, Any] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())
    return dict(project["project"])


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: str(path.name))
def test_locks_pin_with_hashes_and_name_no_address(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert entries
    assert all("==" in entry and "--hash=sha256:" in entry for entry in entries)


def test_locks_have_the_packages_that_the_project_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    extras, peers = groups.pop("extras"), groups.pop("peers")
    dev = [need for group in groups.values() for need in group if isinstance(need, str)]
    dev += [need for folder in OTHERS for need in other(folder)["dependencies"] if not need.startswith("kaas")]
    run = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["ray"]]
    run = [need for need in [*run, *other("softgpu")["dependencies"]] if not need.startswith("softgpu")]
    quick = [need for need in [*run, *groups["quick"]] if not need.startswith("ray")]
    for lock, needs in (
        ("run.txt", run),
        ("quick.txt", quick),
        ("dev.txt", dev),
        ("extras.txt", extras),
        ("peers.txt", peers),
    ):
        names = {re.split(r"[<>=\[ ]", need)[0] for need in needs}
        assert names <= locked(ROOT / "requirements" / lock).keys()


@pytest.mark.parametrize("folder", OTHERS)
def test_the_other_distributions_have_the_version_of_kaas(folder: str) -> None:
    kaas = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert other(folder)["version"] == kaas["version"]
    assert other(folder)["requires-python"] == kaas["requires-python"]
    needs = dict.fromkeys(OTHERS, kaas["name"]) | {"softgpu": "cuda-python>=13.4,<14"}
    assert needs[folder] in other(folder)["dependencies"]


def test_no_page_or_message_installs_by_a_name_that_is_not_ours() -> None:
    """The index has a stranger's `kaas`, and nothing of ours: pages install from a clone or from wheels."""
    ours = r"kaas(?:-gpu)?(?:-[a-z]+)*"
    told = re.compile(rf"(?:pip|uv|uvx|pipx)[^\n`]*\binstall\b[^\n`]*(?<![\w./-]){ours}(?![\w./-])|`{ours}\[[a-z]+\]`")
    pages = [*DOCUMENTS, *(ROOT / folder / "README.md" for folder in OTHERS), *(ROOT / path for path in SOURCES)]
    assert not [f"{page}: {found[0]}" for page in pages for found in told.finditer(page.read_text())]


def test_locks_agree() -> None:
    run, quick, dev = (locked(ROOT / "requirements" / name) for name in ("run.txt", "quick.txt", "dev.txt"))
    assert run.items() <= dev.items()
    assert quick.items() <= dev.items()
    assert not {"ray", "apache-tvm"} & quick.keys()


def test_extras_change_no_package_of_the_locks_but_nvidia_s() -> None:
    """PyTorch wants those of a version of its own."""
    dev, extras = (locked(ROOT / "requirements" / name) for name in ("dev.txt", "extras.txt"))
    assert {name for name in dev.keys() & extras.keys() if dev[name] != extras[name]} <= set(named("nvidia-", dev))


def named(prefix: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(prefix)]


def test_make_installs_nothing_without_its_hash() -> None:
    makefile = (ROOT / "Makefile").read_text()
    installs = re.findall(r"\$\(PIP\) (.*)", makefile)
    assert len(installs) >= 5
    assert not [
        line for line in installs if not line.startswith(("--require-hashes", "--no-deps --no-build-isolation"))
    ]


def test_targets_are_there_and_listed() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in (
        "setup",
        "extras",
        "libs",
        "demo",
        "quick",
        "test",
        "test-all",
        "check",
        "bench",
        "dist",
        "gpu",
        "help",
    ):
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), target
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.processes
def test_wheels_without_kernels_are_made_before_those_that_need_a_compiler() -> None:
    told = subprocess.run(["make", "--dry-run", "dist"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert 0 < told.index("hatchling build") < told.index("tvm_backend &&") < told.index("cutlass_blas build")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.name))
def test_documents_point_to_existing_files(path: Path) -> None:
    text = path.read_text()
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert not [link for link in links if not (path.parent / link).exists()]
    files = re.findall(r"`((?:kaas|compilers|libraries|tests|benchmarks|examples|docs)/[\w./]+)`", text)
    assert not [name for name in files if not (ROOT / name).exists()]
    tests = re.findall(r"`((?:softgpu/softgpu/)?tests/[\w./]+\.py)::(\w+)`", text)
    assert not [name for file, name in tests if f"def {name}(" not in (ROOT / file).read_text()]


@pytest.mark.slow
def test_modules_have_docstrings_and_future_imports() -> None:
    assert not [str(path) for path in SOURCES if not is_introduced(parse(ROOT / path))]


def is_introduced(tree: ast.Module) -> bool:
    """Return whether a file has a docstring and the import of annotations, if it has anything that needs them."""
    futures = (isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    return bool(ast.get_docstring(tree) or not tree.body) and (any(futures) or len(tree.body) <= 1)
