"""The workloads of Table 1, at its sizes."""

from __future__ import annotations

import numpy as np

from kaas.bench.networks import bert, resnet50
from kaas.papers.full.matrices import Products, Solver
from kaas.papers.full.networks import Network
from kaas.papers.full.steps import SIDE, picture, text

FOLDER = "KAAS_PAPERS_FOLDER"
"""The environment variable of the eTasks' folder with exported networks."""
TEXT = bytes(range(32, 127)) * 4
"""A question and a text, with padding behind."""

CGEMM = Products("cgemm", "complex64", 100, 10_000, 25_000)
MICRO = Products("micro", "float32", *[1024] * 5)
JACOBI = Solver(512)
RESNET50 = Network("resnet50", resnet50, (np.arange(SIDE * SIDE * 3) % 256).astype(np.uint8), picture)
BERT = Network("bert", bert, np.frombuffer(TEXT[:344], np.uint8), text)
WORKS = {"resnet50": RESNET50, "bert": BERT, "cgemm": CGEMM, "jacobi": JACOBI, "micro": MICRO}
"""By the workload's name."""
ETASKS = {
    "resnet50": "Resnet50ByTvm",
    "bert": "BertByTvm",
    "cgemm": "CgemmByCupy",
    "jacobi": "jacobi",
    "micro": "MicroByCupy",
}
"""The eTasks, in kaas.papers.full.etasks."""
