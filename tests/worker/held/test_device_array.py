"""Arrays of constants as other libraries see them, by DLPack and by the CUDA array interface."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.ktask import dlpack
from kaas.ktask.dlpack import tensor_of

CONTENT = np.arange(12, dtype=np.float32).reshape(3, 4)
ROWS = kaas.Buffer("rows", (3, 4), "float32")
HOST = 1


class Owner:
    """Something that keeps memory mapped."""


def array(owner: object = None, buffer: kaas.Buffer = ROWS, device: int = 0) -> kaas.DeviceArray:
    return kaas.DeviceArray(buffer, CONTENT.ctypes.data, device, owner)


class OnHost:
    """The array, whose capsules claim to be of host memory, so that NumPy takes them."""

    def __init__(self, array: kaas.DeviceArray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return HOST, 0

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.array.__dlpack__(max_version=options.get("max_version"))
        dlpack._header("rows", self, capsule).device_kind = HOST
        return capsule


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 3)])
def test_an_array_lives_as_long_as_what_a_library_has_made_of_it(version: Any) -> None:
    owner = Owner()
    alive = weakref.ref(owner)
    made = array(owner)
    taken = np.from_dlpack(OnHost(made))
    capsule = made.__dlpack__(max_version=version)
    del owner, made
    np.testing.assert_array_equal(taken, CONTENT)
    assert not taken.flags.writeable
    del taken
    gc.collect()
    assert alive() is not None
    del capsule  # that nobody has taken
    gc.collect()
    assert alive() is None


def test_kaas_itself_takes_it_where_it_is() -> None:
    made = array(device=1)
    assert dlpack.device_of("rows", made) == 1
    tensor = tensor_of("rows", made, stream=7)
    assert (tensor.address, tensor.shape, tensor.dtype) == (CONTENT.ctypes.data, (3, 4), "float32")
    assert (made.shape, made.dtype, made.nbytes) == ((3, 4), "float32", 48)
    assert repr(made) == "<kaas.DeviceArray float32[3, 4] on device 1>"


def test_copies_and_other_devices_are_refused() -> None:
    made = array()
    for refused in ({"copy": True}, {"dl_device": (HOST, 0)}, {"dl_device": (2, 1)}):
        with pytest.raises(BufferError):
            made.__dlpack__(**refused)
    assert made.__dlpack__(copy=False, dl_device=(2, 0)) is not None


def test_the_interface_of_cuda_arrays() -> None:
    assert array().__cuda_array_interface__ == {
        "shape": (3, 4),
        "typestr": "<f4",
        "strides": None,
        "data": (CONTENT.ctypes.data, True),
        "version": 3,
    }
    empty = array(buffer=kaas.Buffer("none", (0, 4), "int8"))
    assert empty.__cuda_array_interface__["data"] == (0, True)
    brain = array(buffer=kaas.Buffer("brain", 4, "bfloat16"))
    assert not hasattr(brain, "__cuda_array_interface__")
    assert brain.__dlpack__() is not None
