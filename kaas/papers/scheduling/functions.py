"""The functions of the scheduling papers, and how often each is called."""

from __future__ import annotations

LALB_MODELS = (
    (1269, 2.41, 1.28),
    (1313, 2.52, 1.25),
    (1357, 2.60, 1.25),
    (1435, 2.32, 1.33),
    (1437, 2.81, 1.25),
    (1555, 2.64, 1.29),
    (1601, 2.49, 1.28),
    (1631, 2.56, 1.30),
    (1665, 2.67, 1.40),
    (1701, 2.67, 1.28),
    (1757, 2.95, 1.30),
    (1827, 3.10, 1.31),
    (1919, 2.75, 1.32),
    (2157, 4.42, 1.63),
    (2191, 3.51, 1.33),
    (2903, 3.94, 1.29),
    (3611, 3.16, 1.31),
    (3831, 3.91, 1.32),
    (3887, 3.98, 1.30),
    (3907, 4.04, 1.27),
    (3907, 4.03, 1.26),
    (3947, 4.07, 1.33),
)
"""Table I of the LALB paper: megabytes, seconds to load, seconds to run a batch of 32, from squeezenet1.1 to vgg19."""
MQFQ_FUNCTIONS = (
    (2.253, 5.477, 8.581),
    (0.268, 5.162, 16.374),
    (4.483, 32.997, 12.044),
    (0.897, 11.584, 2.648),
    (0.026, 0.501, 2.586),
    (2.050, 70.915, 2.125),
    (2.784, 39.277, 2.145),
    (1.979, 144.639, 2.292),
    (1.472, 134.358, 1.997),
)
"""Table 1 of the MQFQ-Sticky paper: seconds warm on a GPU, warm on a CPU and cold on a GPU, from imagenet to
pathfinder. One of them, myocyte, is faster cold than warm."""
LEAST_LOAD_S = 0.05
"""Of MQFQ-Sticky's functions, whatever their cold time says."""
AZURE_EXPONENT = 1.218
"""Of a Zipf distribution over 46,413 functions in which the first 15 have 56 % of the calls, as in Azure's trace."""


def zipf(count: int, exponent: float) -> list[float]:
    """Return the popularities of so many functions."""
    return [(rank + 1) ** -exponent for rank in range(count)]
