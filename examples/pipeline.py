"""A pipeline: an ordinary Ray task, a kTask, an ordinary Ray task. Only references pass through this program.

    python examples/pipeline.py

`draw` renders images, the kTask finds their edges on a device, `count` counts edge pixels. The frames overlap: while
one frame is drawn, another is on the device.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import ray
from numpy.typing import NDArray

import kaas

KERNELS = Path(__file__).parent / "kernels"


def build(height: int, width: int) -> kaas.KTask:
    """Return the kTask: input "image", output "edges"."""
    library = kaas.Library.from_file(KERNELS / "sobel.ptx")
    image = kaas.Buffer("image", (height, width), "float32")
    edges = kaas.Buffer("edges", (height, width), "float32")
    sobel = kaas.Kernel(
        library,
        "sobel",
        grid=(math.ceil(width / 32), math.ceil(height / 8)),
        block=(32, 8),
        args=[kaas.In(image), kaas.Out(edges), kaas.u32(height), kaas.u32(width)],
    )
    return kaas.KTask([sobel], outputs=[edges], name="sobel")


def disc(size: int, radius: float) -> NDArray[np.float32]:
    """Return a white disc on black."""
    x = np.arange(size) - (size - 1) / 2
    return (x[:, None] ** 2 + x**2 < radius**2).astype(np.float32)


def reference(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the edges by Sobel's filters in NumPy."""
    above, here, below = image[:-2], image[1:-1], image[2:]
    across = (above + 2 * here + below)[:, 2:] - (above + 2 * here + below)[:, :-2]
    down = (below - above)[:, :-2] + 2 * (below - above)[:, 1:-1] + (below - above)[:, 2:]
    edges = np.zeros_like(image)
    edges[1:-1, 1:-1] = np.hypot(across, down)
    return edges


@ray.remote
def draw(size: int, radius: float) -> NDArray[np.float32]:
    return disc(size, radius)


@ray.remote
def count(edges: NDArray[np.float32]) -> int:
    return int(np.count_nonzero(edges))


def main(size: int = 256, frames: int = 6) -> None:
    radii = [size * (frame + 1) / (2.5 * frames) for frame in range(frames)]
    find_edges = kaas.register(build(size, size))
    counts = ray.get([count.remote(find_edges.remote(image=draw.remote(size, radius))) for radius in radii])
    for radius, edge_pixels in zip(radii, counts, strict=True):
        assert edge_pixels == np.count_nonzero(reference(disc(size, radius)))
        print(f"radius {radius:6.1f}: {edge_pixels:5} edge pixels, {edge_pixels / radius:.1f} a unit of radius")


if __name__ == "__main__":
    started = kaas.init()
    main()
    if started:
        kaas.shutdown()
