"""Interpreted host code of PrimFuncs: kernels, arguments, extents and workspaces are TVM's."""

from __future__ import annotations

import pickle
from types import ModuleType

import pytest
import tvm

import kaas
from kaas.errors import InvalidTarget
from tests.compilers.lowering_cases import TARGET
from tvm_backend import targets
from tvm_backend.accesses import Use, uses
from tvm_backend.launches import Launch, Pointer, Workspace, launches
from tvm_backend.lowering import split


@pytest.fixture(scope="module")
def several(scripts: ModuleType) -> tuple[tvm.IRModule, tvm.IRModule]:
    return split(scripts.Several, TARGET)


def test_loops_conditions_workspaces_and_scalars(several: tuple[tvm.IRModule, tvm.IRModule]) -> None:
    host, _ = several
    made, problems = launches(host["several"], [(64,), (64,), 5, 0.5])
    assert problems == []
    assert [(launch.grid, launch.block, launch.shared_bytes) for launch in made] == [
        ((2, 1, 1), (1, 16, 1), 0),
        ((6, 1, 1), (1, 16, 1), 0),
        ((1, 1, 1), (64, 1, 1), 0),
    ]
    spaces = {pointer.base for launch in made for pointer in pointers(launch) if isinstance(pointer.base, Workspace)}
    assert [space.nbytes for space in spaces] == [4 * 6 * 16]  # as many bytes as are used
    first, second, last = ({a for a in launch.arguments if not isinstance(a, Pointer)} for launch in made)
    assert first == {kaas.i64(5), kaas.i64(0), kaas.f32(0.5)}
    assert second == {kaas.i64(5), kaas.i64(2), kaas.f32(0.5)}
    assert last == set()
    assert {pointer.base for pointer in pointers(made[0])} == {0, *spaces}
    assert {pointer.base for pointer in pointers(made[2])} == {1, *spaces}


def test_loads_and_stores_by_parameter(several: tuple[tvm.IRModule, tvm.IRModule]) -> None:
    host, device = several
    first, _, last = launches(host["several"], [(64,), (64,), 5, 0.5])[0]
    found = dict(zip(first.arguments, uses(device[first.symbol]), strict=True))
    assert found[Pointer(0, 0)] == Use(loads=True, stores=False)
    (space,) = (p for p in pointers(first) if isinstance(p.base, Workspace))
    assert found[space] == Use(loads=False, stores=True)
    assert found[kaas.f32(0.5)] == Use(loads=False, stores=False)
    found = dict(zip(last.arguments, uses(device[last.symbol]), strict=True))
    assert found[Pointer(1, 0)] == Use(loads=True, stores=True)


def test_addresses_that_escape_may_be_read_and_written(scripts: ModuleType) -> None:
    host, device = split(scripts.Addresses, TARGET)
    (launch,), _ = launches(host["addresses"], [(4,), (4,), (4,)])
    found = dict(zip(launch.arguments, uses(device[launch.symbol]), strict=True))
    assert found[Pointer(0, 0)] == Use(loads=True, stores=True)
    assert found[Pointer(1, 0)] == Use(loads=True, stores=False)
    assert found[Pointer(2, 0)] == Use(loads=True, stores=True)


def test_steps_that_run_on_the_host_are_named(scripts: ModuleType) -> None:
    host, _ = split(scripts.OnTheHost, TARGET)
    made, problems = launches(host["host"], [(4,), (4,), 3])
    assert len(made) == 1
    assert [(place.operator, place.where) for place in problems] == [
        ("some.library.gemm", "host"),
        ("write_a_file", "host"),
    ]


def test_too_many_launches_are_reported(scripts: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_backend.launches.MOST_LAUNCHES", 10)
    host, _ = split(scripts.Many, TARGET)
    _, (problem,) = launches(host["many"], [(4,)])
    assert (problem.where, problem.reason) == ("many", "launches more than 10 kernels")


def pointers(launch: Launch) -> list[Pointer]:
    return [argument for argument in launch.arguments if isinstance(argument, Pointer)]


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("sm_80+ptx", "sm_80"),
        ("sm_90", "sm_90"),
        ("sm_90a+ptx", "sm_90"),
        ("sm_90+sm_80+ptx", "sm_80"),
        ("compute_89", "sm_89"),
        ("ptx", "sm_80"),
    ],
)
def test_targets(name: str, architecture: str) -> None:
    target = targets.parsed(name)
    assert (target.name, target.architecture) == (name, architecture)
    assert target.tvm.attrs["max_shared_memory_per_block"] == 48 << 10
    assert str(target.tvm.attrs["arch"]) == architecture


@pytest.mark.parametrize("name", ["", "sm_", "sm_70", "gfx90a", "sm_80,ptx", "sm_80++ptx", "cuda"])
def test_unknown_targets(name: str) -> None:
    with pytest.raises(InvalidTarget) as caught:
        targets.parsed(name)
    assert pickle.loads(pickle.dumps(caught.value)).target == name
