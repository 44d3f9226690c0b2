"""Payloads fit the function that they are for."""

from __future__ import annotations

import numpy as np
import pytest

import kaas
from kaas.bench.payloads import payload
from kaas.ktask.dtypes import DTYPE_BYTES, numpy_dtype
from kaas.ktask.request import input_bytes


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_an_input_of_each_dtype_fits_and_is_no_special_number(dtype: str) -> None:
    buffer = kaas.Buffer("x", (7, 33), dtype)
    made = payload([buffer])["x"]
    assert (made.dtype, made.shape) == (numpy_dtype(dtype), (7, 33))
    assert len(input_bytes(buffer, made)) == buffer.nbytes
    wide = made.astype(np.complex128)
    assert np.isfinite(wide).all()
    assert 0 <= wide.real.min() < wide.real.max() <= 1


def test_a_seed_chooses_the_values() -> None:
    inputs = [kaas.Buffer("x", 64), kaas.Buffer("y", 64)]
    first, again, other = payload(inputs, 1), payload(inputs, 1), payload(inputs, 2)
    np.testing.assert_equal(first, again)
    assert (first["x"] != other["x"]).any()
    assert (first["x"] != first["y"]).any()
