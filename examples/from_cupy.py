"""A kernel written for CuPy, unchanged: heat that spreads over a plate.

    python examples/from_cupy.py

CuPy compiles nothing and needs no GPU: KaaS takes source and options from the RawKernel. Needs CuPy.
"""

from __future__ import annotations

import cupy
import numpy as np
from numpy.typing import NDArray

import kaas

TILE = 16
HEAT = cupy.RawKernel(
    r"""
extern "C" __global__ void spread(const float *old, float *heat, int n) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= n || y >= n) return;
    float here = old[y * n + x];
    if (x == 0 || y == 0 || x == n - 1 || y == n - 1) { heat[y * n + x] = here; return; }
    float around = old[y * n + x - 1] + old[y * n + x + 1] + old[(y - 1) * n + x] + old[(y + 1) * n + x];
    heat[y * n + x] = here + RATE * (around - 4 * here);
}
""",
    "spread",
    options=("-DRATE=0.2f",),
)


def build(n: int) -> kaas.KTask:
    """Return the kTask: plate "heat" as input and output, scalar "passes"; two steps a pass, there and back."""
    library = kaas.Library.from_cupy(HEAT)
    heat, between = (kaas.Buffer(name, (n, n), "float32") for name in ("heat", "between"))
    tiles = -(-n // TILE)

    def step(old: kaas.Buffer, new: kaas.Buffer) -> kaas.Kernel:
        return library.kernel(grid=(tiles, tiles), block=(TILE, TILE), args=[kaas.In(old), kaas.Out(new), kaas.i32(n)])

    passes = kaas.Scalar("passes", "u32")
    return kaas.KTask([step(heat, between), step(between, heat)], outputs=[heat], iterations=passes, name="heat")


def reference(heat: NDArray[np.float32], steps: int) -> NDArray[np.float64]:
    now = heat.astype(np.float64)
    for _ in range(steps):
        around = now[1:-1, :-2] + now[1:-1, 2:] + now[:-2, 1:-1] + now[2:, 1:-1]
        now[1:-1, 1:-1] += 0.2 * (around - 4 * now[1:-1, 1:-1])
    return now


def main(n: int = 100, steps: int = 40) -> None:
    plate = np.zeros((n, n), np.float32)
    plate[0] = 100
    heat = kaas.run_local(build(n), {"heat": plate}, scalars={"passes": steps // 2})["heat"]
    np.testing.assert_allclose(heat, reference(plate, steps), atol=1e-3)
    print(
        f"after {steps} steps the second row has {heat[1, n // 2]:.1f} degrees, the middle {heat[n // 2, n // 2]:.1e}"
    )


if __name__ == "__main__":
    main()
