"""Many models, little memory: 64 models of 16 MB, asked for by Zipf's law, and room for 16.

A model is a vector of 16 MB, and its answer the sum of 4 KB of input and the vector's first 4 KB. KaaS keeps the
vectors as constants of 64 functions, under the policy that docs/policies.md advises for functions that do not fit
together, `adaptive`: its device gives up the models that are asked for least. Serve's replica keeps at most 16 models,
and loads others from a file each, as Serve's documentation shows it. Both find all models in the host's memory: KaaS
in its host cache, Serve in the page cache. KaaS's device has two slots, so that a model is copied to it while another
runs; Serve's replica, too, begins requests while others run. A second replica maps its files into memory in place of
reading them: a model costs it only the pages that a request reads, where a device would need all of them. `rate_per_s`
is that of the median turn, and `hot_per_s` the rate for one model that is loaded: what is left without misses.
"""

from __future__ import annotations

import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal

import numpy as np

from kaas.api import program
from kaas.api.registration import register
from kaas.bench.shares import fairness
from kaas.config import Config, Device
from kaas.errors import WrongAnswer
from kaas.ktask.arguments import Buffer, In, Out
from kaas.ktask.graph import KTask
from kaas.ktask.library import Kernel, Library
from kaas.peers.serving import free_port, quiet_ray, serving
from kaas.peers.systems import PeerSystem, part_of
from kaas.peers.turns import MeasuredSide

MODELS, ROOM = 64, 16
MODEL_BYTES = 16 << 20
ELEMENTS = 1024
EXPONENT = 1.1
CALLERS = 4
SLOTS = 2
TURN = 50
"""Requests of one side before the other side's turn."""
HOT_TURNS = 3
SPARE_BYTES = 8 << 20
"""Device memory for inputs and outputs, beside the room for models."""
DEVICE = Device("software", ROOM * MODEL_BYTES + SPARE_BYTES)
PTX = """.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 x, .param .u64 w, .param .u64 y) {
    .reg .b32 %r<4>; .reg .b64 %d<5>; .reg .f32 %f<4>;
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 256, %r1; mul.wide.u32 %d4, %r3, 4;
    ld.param.u64 %d1, [x]; add.s64 %d1, %d1, %d4; ld.global.f32 %f1, [%d1];
    ld.param.u64 %d2, [w]; add.s64 %d2, %d2, %d4; ld.global.f32 %f2, [%d2];
    ld.param.u64 %d3, [y]; add.s64 %d3, %d3, %d4;
    add.f32 %f3, %f1, %f2; st.global.f32 [%d3], %f3;
    ret;
}
"""


def asked(requests: int, seed: int = 0) -> list[int]:
    """Return the model of each request: the n-th most popular one has a share in proportion to 1 / n^1.1."""
    weights = 1 / np.arange(1, MODELS + 1) ** EXPONENT
    order = np.random.default_rng(seed).choice(MODELS, requests, p=weights / weights.sum())
    return [int(model) for model in order]


def weights_of(model: int) -> np.ndarray[Any, Any]:
    """Return the vector of a model: its number everywhere."""
    return np.full(MODEL_BYTES // 4, model, np.float32)


def addition() -> KTask:
    """Return the kTask: input "x", constant "w", output "y"."""
    x, y = Buffer("x", ELEMENTS, "float32"), Buffer("y", ELEMENTS, "float32")
    w = Buffer("w", MODEL_BYTES // 4, "float32")
    return KTask([Kernel(Library.from_ptx(PTX), "add", ELEMENTS // 256, 256, [In(x), In(w), Out(y)])], [y])


@dataclass(slots=True)
class TenantSide:
    """One side, and what its callers have got.

    Fields:
        system: of the side. service: of a model. loaded_bytes: returns the bytes that were loaded since the side's
            start. seconds: of each turn. latencies_s: of each request. done, waited_s: by model, its requests, and the
            sum of their latencies.
    """

    system: PeerSystem
    service: Callable[[int], MeasuredSide]
    loaded_bytes: Callable[[], int]
    seconds: list[float] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    waited_s: Counter[str] = field(default_factory=Counter)

    def turn(self, order: Sequence[int]) -> None:
        """Let 4 callers send the requests, each one after the other in a thread of its own.

        Raises:
            WrongAnswer: an answer is another model's.
        """
        left, began = deque(order), perf_counter()
        with ThreadPoolExecutor(CALLERS) as callers:
            found = [callers.submit(self._calls, left) for _ in range(CALLERS)]
        self.seconds.append(perf_counter() - began)
        for model, latency_s in (call for each in found for call in each.result()):
            self.latencies_s.append(latency_s)
            self.done[str(model)] += 1
            self.waited_s[str(model)] += latency_s  # type: ignore[assignment]

    def _calls(self, left: deque[int]) -> list[tuple[int, float]]:
        """Send requests until none is left; return their models and latencies."""
        found: list[tuple[int, float]] = []
        while True:
            try:
                model = left.popleft()
            except IndexError:
                return found
            sent_s = perf_counter()
            answer = self.service(model).call()
            found.append((model, perf_counter() - sent_s))
            if answer[0] != model + 1:
                raise WrongAnswer(f"model {model} gave {answer[0]}, not {model + 1}")

    def rate_of(self, model: int, requests: int) -> float:
        """Return the requests a second for one model alone."""
        alone = TenantSide(self.system, self.service, self.loaded_bytes)
        alone.turn([model] * requests)
        return requests / alone.seconds[0]


def measure(peers: tuple[PeerSystem, ...], requests: int) -> dict[str, dict[str, float]]:
    """Return each side's requests a second, 99th percentile of latency in seconds, loaded bytes, and Jain's index.

    requests: of each side; a multiple of TURN.

    The index is that of the models' rates, a model's rate being its requests over the sum of their latencies: it is 1
    if no model waits longer than another.

    Raises:
        PeerFailed
        WrongAnswer: an answer of KaaS is another model's.
    """
    order = asked(requests)
    with ExitStack() as closing:
        closing.enter_context(quiet_ray())
        sides = {"KaaS": closing.enter_context(_kaas())}
        if PeerSystem.SERVE in peers:
            with part_of(PeerSystem.SERVE):
                sides |= closing.enter_context(_serve())
        for side in sides.values():
            with part_of(side.system):
                for model in range(MODELS):  # the first request of each model compiles, or starts a replica
                    side.service(model).call()
        before = _loaded(sides)
        for first in range(0, requests, TURN):
            for side in sides.values():
                with part_of(side.system):
                    side.turn(order[first : first + TURN])
        hot: dict[str, list[float]] = {name: [] for name in sides}
        after = _loaded(sides)
        for _ in range(HOT_TURNS):
            for name, side in sides.items():
                with part_of(side.system):
                    hot[name].append(side.rate_of(0, TURN))
        return {
            name: {
                "rate_per_s": TURN / median(side.seconds),
                "p99_s": float(np.quantile(side.latencies_s, 0.99)),
                "loaded_mb": (after[name] - before[name]) / 1e6,
                "jain": fairness(side.done, side.waited_s),
                "hot_per_s": median(hot[name]),
            }
            for name, side in sides.items()
        }


def _loaded(sides: Mapping[str, TenantSide]) -> dict[str, int]:
    """Return the bytes that each side has loaded."""
    found: dict[str, int] = {}
    for name, side in sides.items():
        with part_of(side.system):
            found[name] = side.loaded_bytes()
    return found


@contextmanager
def _kaas() -> Iterator[TenantSide]:
    x = np.ones(ELEMENTS, np.float32)
    config = Config((DEVICE,), policy="adaptive", slots=SLOTS, host_cache_bytes=2 * MODELS * MODEL_BYTES)
    program.init(config=config)
    task = addition()
    functions = [register(task, constants={"w": weights_of(model)}) for model in range(MODELS)]

    def loaded() -> int:
        return sum(tier.nbytes for tier in program.stats().tiers if tier.tier != "device")  # not found on the device

    try:
        yield TenantSide(
            PeerSystem.KAAS,
            lambda model: MeasuredSide(partial(functions[model].call, x=x), lambda sent: sent.result()),
            loaded,
        )
    finally:
        program.shutdown()


@contextmanager
def _serve() -> Iterator[dict[str, TenantSide]]:
    x = np.ones(ELEMENTS, np.float32)

    def side(handle: Any) -> TenantSide:
        models = [handle.options(multiplexed_model_id=str(model)) for model in range(MODELS)]
        return TenantSide(
            PeerSystem.SERVE,
            lambda model: MeasuredSide(partial(models[model].add.remote, x), lambda sent: sent.result()),
            lambda: handle.loaded.remote().result(),
        )

    with tempfile.TemporaryDirectory() as folder:
        for model in range(MODELS):
            np.save(Path(folder) / f"{model}.npy", weights_of(model))
        instances = ((folder, None), (folder, "r"))
        with serving(multiplexed_models(), free_port(), instances=instances) as (reading, mapping):
            yield {"Serve, multiplexed": side(reading), "Serve, multiplexed, mapped files": side(mapping)}


def multiplexed_models() -> type:
    """Return the class of Serve's application. Its decorator needs Serve."""
    serve: Any = import_module("ray.serve")

    class MultiplexedModels:
        def __init__(self, folder: str, mapped: Literal["r"] | None) -> None:
            self.folder, self.mapped, self.bytes = folder, mapped, 0

        @serve.multiplexed(max_num_models_per_replica=ROOM)  # type: ignore[untyped-decorator]
        async def model(self, name: str) -> Any:
            weights = np.load(f"{self.folder}/{name}.npy", mmap_mode=self.mapped)
            self.bytes += 4 * ELEMENTS if self.mapped else weights.nbytes  # what a request reads of it
            return weights

        async def add(self, x: Any) -> Any:
            weights = await self.model(serve.get_multiplexed_model_id())
            return x + weights[: len(x)]

        async def loaded(self) -> int:
            return self.bytes

    return MultiplexedModels
