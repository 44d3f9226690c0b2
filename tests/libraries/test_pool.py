"""Products of the BLAS library through the pool: named and not uploaded, fused, with a Ray task between two kTasks."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import ray
from numpy.typing import NDArray

import cutlass_blas
import kaas
from kaas import errors
from tests.api.conftest import numbers, pool

__all__ = ["pool"]

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("pool")]

ROWS, INNER, WIDE, OUT = 33, 40, 65, 17
WEIGHTS = {"w1": (INNER, WIDE), "b1": (WIDE,), "w2": (WIDE, OUT), "b2": (OUT,)}


def network() -> kaas.KTask:
    """y = gelu(x w1 + b1) w2 + b2: two products whose biases and activation are fused into them."""
    x, hidden, y = (
        kaas.Buffer(name, shape, "float32")
        for name, shape in (("x", (ROWS, INNER)), ("hidden", (ROWS, WIDE)), ("y", (ROWS, OUT)))
    )
    w1, b1, w2, b2 = (kaas.Buffer(name, shape, "float32") for name, shape in WEIGHTS.items())
    first = cutlass_blas.gemm(x, w1, hidden, epilogue=cutlass_blas.Epilogue(bias=b1, activation="gelu"))
    second = cutlass_blas.gemm(hidden, w2, y, epilogue=cutlass_blas.Epilogue(bias=b2))
    return kaas.KTask([*first, *second], [y], name="network")


def gram() -> kaas.KTask:
    """g = scale zᵀ z."""
    z, g = kaas.Buffer("z", (ROWS, OUT), "float32"), kaas.Buffer("g", (OUT, OUT), "float32")
    return kaas.KTask(cutlass_blas.gemm(z, z, g, alpha=kaas.Scalar("scale", "f32"), trans_a="t"), [g], name="gram")


def weights() -> dict[str, NDArray[np.float32]]:
    return {
        name: numbers(math.prod(shape), seed).reshape(shape) - np.float32(0.5)
        for seed, (name, shape) in enumerate(WEIGHTS.items())
    }


def expected_network(x: NDArray[np.float32], w: dict[str, NDArray[np.float32]]) -> NDArray[np.float64]:
    wide = {name: value.astype(np.float64) for name, value in w.items()}
    before = x @ wide["w1"] + wide["b1"]
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return np.asarray(0.5 * before * (1 + erf(before / math.sqrt(2))) @ wide["w2"] + wide["b2"])


@ray.remote
def centred(y: NDArray[np.float32]) -> NDArray[np.float32]:
    """An ordinary Ray task: it sees an array and gives one."""
    return np.ascontiguousarray(y - y.mean(axis=0, dtype=np.float64), dtype=np.float32)


@pytest.mark.full
def test_two_fused_products_a_ray_task_and_another_product() -> None:
    w, x = weights(), numbers(ROWS * INNER, 9).reshape(ROWS, INNER)
    net, square = kaas.register(network(), constants=w), kaas.register(gram())
    y = net.remote(x=x)
    z = centred.remote(y)
    g = square.remote(z=z, scale=0.5)
    expected = expected_network(x, w)
    np.testing.assert_allclose(ray.get(y), expected, rtol=1e-4, atol=1e-4)
    middle = expected - expected.mean(axis=0)
    np.testing.assert_allclose(ray.get(g), 0.5 * middle.T @ middle, rtol=1e-3, atol=1e-3)


def test_invoke_without_registering() -> None:
    w, x = weights(), numbers(ROWS * INNER, 10).reshape(ROWS, INNER)
    y = kaas.invoke(network(), {"x": x, **w})
    np.testing.assert_allclose(ray.get(y), expected_network(x, w), rtol=1e-4, atol=1e-4)


def test_nothing_is_uploaded() -> None:
    """The message names the kernels: their code stays where the package is installed."""
    task = network()
    assert all(image.kind == "provided" for library in task.libraries for image in library.images)
    assert sum(len(image.data) for library in task.libraries for image in library.images) < 300
    assert len(pickle.dumps(task)) < 4000
    again: Any = pickle.loads(pickle.dumps(task))
    assert again.key == task.key


def test_a_missing_version_is_reported_to_the_caller() -> None:
    """As when the program has another version of the package than the machines of the pool."""
    kernel = network().kernels[0]
    name = kernel.library.images[0].data.split(b"\0")[1].decode()
    other = kaas.Library.provided("cutlass_blas", name, "0-of-another-day")
    arguments = [kaas.Kernel(other, kernel.symbol, kernel.grid, kernel.block, kernel.args, kernel.shared_bytes)]
    task = kaas.KTask(arguments, ["hidden"])
    w, x = weights(), numbers(ROWS * INNER, 10).reshape(ROWS, INNER)
    with pytest.raises(errors.NotProvided, match=f"{name}.*another version") as raised:
        ray.get(kaas.invoke(task, {"x": x, "w1": w["w1"], "b1": w["b1"]}))
    assert (raised.value.provider, raised.value.name) == ("cutlass_blas", name)
    assert raised.value.version == "0-of-another-day"
