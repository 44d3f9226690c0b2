"""The steps around the networks: a picture or a text becomes a network's inputs, and its output a score.

A step lasts for its share of Table 1's CPU time: the paper has no more about it than this time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import numpy as np

from kaas.bench.networks import WORDS
from kaas.papers.testbed import Step
from kaas.papers.workloads import BEFORE_SHARE, WORKLOADS, Workload

if TYPE_CHECKING:
    from kaas.models.constants_file import Array

SIDE = 224
"""Of a picture, in pixels."""
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's pictures: red, green, blue."""
FIRST_TOKEN = 1000
"""The token of byte 0: a byte is a word."""
QUESTION = 24
"""The number of words of the question, before the text."""


def picture(data: bytes) -> dict[str, Array]:
    """Return ResNet-50's input, (1, 3, SIDE, SIDE) of float32, for pixels of uint8, red, green and blue."""
    pixels = np.frombuffer(data, np.uint8).reshape(SIDE, SIDE, 3).astype(np.float32) / 255
    scaled = (pixels - np.array(MEAN, np.float32)) / np.array(DEVIATION, np.float32)
    return {"x": np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])}


def text(data: bytes) -> dict[str, Array]:
    """Return BERT's inputs, int64 of (1, WORDS), for a question and a text of WORDS bytes at most."""
    words = np.frombuffer(data[:WORDS], np.uint8)
    tokens = np.zeros((1, WORDS), np.int64)
    tokens[0, : words.size] = words.astype(np.int64) + FIRST_TOKEN
    places = np.arange(WORDS)[None]
    mask = (places < words.size).astype(np.int64)
    return {"tokens": tokens, "segments": mask * (places >= QUESTION), "mask": mask}


def _before(workload: Workload, convert: Callable[[bytes], Mapping[str, Array]]) -> Step:
    def step(values: Mapping[str, bytes]) -> dict[str, Any]:
        end_s = perf_counter() + workload.cpu_s * BEFORE_SHARE
        made = convert(values["data"])
        sleep(max(0.0, end_s - perf_counter()))
        return dict(made)

    return step


def _after(workload: Workload) -> Step:
    def step(values: Mapping[str, bytes]) -> dict[str, Any]:
        sleep(workload.cpu_s * (1 - BEFORE_SHARE))
        (output,) = values.values()
        return {"score": np.frombuffer(output, np.float32)[:1]}

    return step


resnet50_before, resnet50_after = _before(WORKLOADS["resnet50"], picture), _after(WORKLOADS["resnet50"])
bert_before, bert_after = _before(WORKLOADS["bert"], text), _after(WORKLOADS["bert"])
