"""The service under load: a function of a pool or of a server, registered once for each client."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaas.config import ClientSettings, Config
from kaas.import_target import modules_here
from kaas.ktask.arguments import Buffer
from kaas.ktask.graph import KTask
from kaas.models.model import CompiledModel

if TYPE_CHECKING:
    from kaas.api.function import Function
    from kaas.scheduling.decisions import PolicyFactory

PATIENCE_S = 15.0
"""Seconds that a client waits for a server which does not answer: a measurement of a stopped server has an end."""


@dataclass(frozen=True, slots=True)
class LoadedService:
    """Functions of one service.

    Fields:
        functions: by client. stats: returns the service's figures, of each client. devices: the kind of each; none if
            the service does not say. weights: of clients whose weight is not 1. inputs: those that a caller gives, of a
            model those of its first variant. scalars: kinds by name. stepped: a step at the server makes the inputs, of
            values that the service does not tell. slots: returns the number of requests that each
            device runs at a time, once it has run one.
    """

    functions: Mapping[str, Any]
    stats: Callable[[], Sequence[Any]]
    devices: Sequence[str]
    weights: Mapping[str, float]
    inputs: Sequence[Buffer]
    scalars: Mapping[str, str] = field(default_factory=dict)
    slots: Callable[[], int] = lambda: 1
    stepped: bool = False

    def weight(self, client: str) -> float:
        """Return a client's weight."""
        return self.weights.get(client, 1.0)


@contextmanager
def at_server(
    loaded: KTask | CompiledModel | str, address: str, keys: Sequence[Path] | None
) -> Iterator[LoadedService]:
    """Give a function at a server, or the one of this name there, to each client with a file of keys, or without."""
    from kaas.client.client import Client

    paths: list[Path | None] = [*keys] if keys else [None]
    stems = [path.stem if path else "" for path in paths]
    names = stems if len(set(stems)) == len(stems) else [str(path) for path in paths]
    with ExitStack() as closing:
        clients = {
            name: closing.enter_context(Client(address, keys=path, patience_s=PATIENCE_S))
            for name, path in zip(names, paths, strict=True)
        }
        functions = {
            each: client.function(loaded) if isinstance(loaded, str) else client.register(loaded)
            for each, client in clients.items()
        }
        described = next(iter(functions.values())).tasks[0]
        stats = lambda: [client.stats() for client in clients.values()]  # noqa: E731
        inputs, stepped = tuple(described.taken.values()), described.before
        yield LoadedService(functions, stats, (), {}, inputs, described.scalars, stepped=stepped)


def as_registered(made: KTask | CompiledModel | Function) -> Function:
    """Return the function of a kTask or a model in this program's pool; a function as it is."""
    from kaas.api.registration import register

    match made:
        case KTask():
            return register(made)
        case CompiledModel():
            return made.register()
        case _:
            return made


def _slots() -> int:
    """Return the slots of each device of this program's pool: they are the same for all devices that have a worker."""
    from kaas.api import program

    return max((each.info.slots for each in program.status().devices if each.info is not None), default=1)


@contextmanager
def in_pool(
    make: Callable[[], KTask | CompiledModel | Function],
    name: str,
    weights: Mapping[str, float],
    policy: str | PolicyFactory | None,
    *,
    ray: bool,
) -> Iterator[LoadedService]:
    """Give the function in the pool of this name. A pool of plain processes that does not run yet runs meanwhile.

    Args:
        make: returns a kTask, a model, or a function that it has registered: it is called once the pool runs.
        name: of the pool.
        weights: by client; without clients there is one, without a name.
        policy: of a pool that starts: a name, or a callable of a module, as `kaas.Config` takes it.
        ray: the pool runs on Ray already.
    """
    from kaas.api import program

    if ray:
        program.attach(name)
    settings = {each: ClientSettings(weight=weight) for each, weight in weights.items()}
    config = None if policy is None and not settings else Config(clients=settings)  # None: as it runs
    if config is not None and policy is not None:
        config = replace(config, policy=policy)
    with modules_here():  # the pool's process imports the policy from there, too
        opened = not ray and program.init(ray=False, name=name, config=config)
    if not opened:
        print(f"in the running pool {name!r}, which other programs may use meanwhile", file=sys.stderr)
    try:
        function = as_registered(make())
        each_own = {each: function.options(client=each) for each in weights}
        kinds, functions = [each.kind for each in program.status().devices], each_own or {"": function}
        stats = lambda: [program.stats()]  # noqa: E731
        yield LoadedService(functions, stats, kinds, weights, function.inputs, function.task.scalars, _slots)
    finally:
        if opened:
            program.shutdown()
