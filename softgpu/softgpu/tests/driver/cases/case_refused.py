"""Calls that are refused: they report their name, on stderr once and in `softgpu_refused`."""

from __future__ import annotations

import ctypes

import pytest
from cuda.bindings import driver

from softgpu.tests.driver.calls import Error
from softgpu.tests.driver.table import refused
from softgpu.watch import take_refused

pytestmark = pytest.mark.usefixtures("ctx")


def found(library: ctypes.CDLL, name: str) -> ctypes.c_void_p:
    """Return the function that cuGetProcAddress gives for a name, in the newest interface."""
    address, result = ctypes.c_void_p(), ctypes.c_int()
    library.cuGetProcAddress_v2(name.encode(), ctypes.byref(address), 13010, ctypes.c_uint64(0), ctypes.byref(result))
    return address


@pytest.mark.alone
@pytest.mark.refusals
def test_every_refused_call_reports_its_name(library: ctypes.CDLL, capfd: pytest.CaptureFixture[str]) -> None:
    library.softgpu_last_error.restype = ctypes.c_char_p
    for name, why in refused().items():
        call = ctypes.CFUNCTYPE(ctypes.c_int)(found(library, name).value or 0)
        assert call() == int(Error.CUDA_ERROR_NOT_SUPPORTED)
        assert library.softgpu_last_error().decode() == f"the software GPU does not support {name} ({why})"
    call()
    said = capfd.readouterr().err.splitlines()
    assert sorted(said) == sorted(
        f"softgpu: the software GPU does not support {name} ({why})" for name, why in refused().items()
    )
    assert sorted(take_refused(library)) == sorted(refused())
    assert take_refused(library) == ()


@pytest.mark.refusals
def test_through_cuda_bindings(library: ctypes.CDLL) -> None:
    assert driver.cuTexObjectDestroy(driver.CUtexObject(0))[0] == Error.CUDA_ERROR_NOT_SUPPORTED
    assert take_refused(library) == ("cuTexObjectDestroy",)


def test_a_name_that_no_cuda_has(library: ctypes.CDLL) -> None:
    assert not found(library, "cuSupposedlyThere")
    assert not found(library, "cuMemAllocate")


def test_a_call_of_a_later_cuda_is_refused() -> None:
    with pytest.raises(RuntimeError, match="cuStreamEndCaptureToCig"):
        driver.cuStreamEndCaptureToCig(driver.CUstream(0))
