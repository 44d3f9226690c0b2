"""CUDA C++ in a string, compiled by NVRTC for any device: the root mean square norm of each row, in float16.

    python examples/from_cuda.py

A name instantiates the template, and `library.kernel` takes that name. Needs nvidia-cuda-nvrtc; no GPU, no nvcc.
"""

from __future__ import annotations

import numpy as np
import ray

import kaas

WARP = 32
SOURCE = """
#include <cuda_fp16.h>  // it comes with NVRTC

template <class T> __global__ void rms_norm(const T *x, const T *weight, T *y, int columns, float epsilon) {
    const T *row = x + (size_t)blockIdx.x * columns;
    float sum = 0;
    for (int i = threadIdx.x; i < columns; i += 32) sum += (float)row[i] * (float)row[i];
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    float scale = rsqrtf(sum / columns + epsilon);
    for (int i = threadIdx.x; i < columns; i += 32)
        y[(size_t)blockIdx.x * columns + i] = (T)((float)row[i] * scale * (float)weight[i]);
}
"""


def build(rows: int, columns: int, dtype: str = "float16") -> kaas.KTask:
    """Return the kTask: inputs "x" and "weight", output "y"."""
    name = {"float16": "rms_norm<__half>", "float32": "rms_norm<float>"}[dtype]
    library = kaas.Library.from_cuda(SOURCE, "sm_80+ptx", names=[name])
    x, y = (kaas.Buffer(buffer, (rows, columns), dtype) for buffer in ("x", "y"))
    weight = kaas.Buffer("weight", columns, dtype)
    arguments = [kaas.In(x), kaas.In(weight), kaas.Out(y), kaas.i32(columns), kaas.f32(1e-5)]
    norm = library.kernel(name, grid=rows, block=WARP, args=arguments)
    return kaas.KTask([norm], outputs=[y], name="rms_norm")


def main(rows: int = 64, columns: int = 1000) -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(rows, columns)).astype(np.float16)
    weight = rng.uniform(0.5, 1.5, columns).astype(np.float16)
    norm = kaas.register(build(rows, columns), constants={"weight": weight})
    y = ray.get(norm.remote(x=x))
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    error = np.abs(y - expected).max()
    assert error < 5e-3, error
    print(f"{rows} rows of {columns} normalised: off by at most {error:.1e}")


if __name__ == "__main__":
    started = kaas.init()
    main()
    if started:
        kaas.shutdown()
