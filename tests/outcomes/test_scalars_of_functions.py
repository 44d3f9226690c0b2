"""A Function takes scalars by name, next to its inputs. An error explains that if they are given as for `kaas.call`."""

from __future__ import annotations

import numpy as np
import pytest

import kaas
from kaas.errors import UnexpectedInput
from tests.api.conftest import STEPS

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("softgpu", "pool")]


def test_scalars_are_given_by_name_next_to_inputs() -> None:
    x, y = kaas.Buffer("x", 256, "float32"), kaas.Buffer("y", 256, "float32")
    factor = kaas.Scalar("factor", "f32")
    kernel = kaas.Kernel(STEPS, "scale", 1, 256, [kaas.In(x), kaas.Out(y), factor, kaas.u32(256)])
    scaled = kaas.register(kaas.KTask([kernel], [y]))
    ones = np.ones(256, np.float32)
    assert (scaled.call(x=ones, factor=3.0).result() == 3).all()
    with pytest.raises(UnexpectedInput, match=r"no input 'scalars'; give scalars by name: factor=\.\.\.$"):
        scaled.call(x=ones, scalars={"factor": 3.0})
