"""The target of `kaas bench`: a file, a Python function, or a function's name, at the service that is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from kaas.cli.files import load_file
from kaas.errors import InvalidRequest, NotInitialized
from kaas.import_target import find_target, modules_here
from kaas.ktask.draw import printable
from kaas.ktask.graph import KTask
from kaas.models.model import CompiledModel

if TYPE_CHECKING:
    from kaas.bench.service import LoadedService
    from kaas.scheduling.decisions import PolicyFactory


def loaded_from(target: str, server: str | None) -> KTask | CompiledModel | Callable[[], Any] | str:
    """Return the kTask or model of a file, a Python function, or the name of a function or a model at a server.

    Raises:
        InvalidRequest, InvalidConfig
    """
    if Path(target).is_file():
        return load_file(Path(target))
    if ":" in target and (server is None or _is_python(target)):
        with modules_here():
            found: Callable[[], Any] = find_target("FILE", target)
        return found
    if server is None or Path(target).suffix in (".json", ".kaas"):
        others = "" if server else "; a Python function is module:function, a function's name needs --server"
        raise InvalidRequest(f"there is no file {target!r}{others}")
    try:
        target.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the name of a function or a model is a text, not {target!r}") from error
    return target


def made_of(target: str, loaded: KTask | CompiledModel | Callable[[], Any], *kinds: type) -> Any:
    """Return what a Python function makes, of one of these kinds; else the kTask or the model.

    Raises:
        InvalidRequest
    """
    if isinstance(loaded, KTask | CompiledModel):
        return loaded
    with modules_here():
        made = loaded()
    if not isinstance(made, (KTask, CompiledModel, *kinds)):
        others = "".join(f" or a kaas.{kind.__name__}" for kind in kinds)
        raise InvalidRequest(f"{target} returns a kTask or a CompiledModel{others}, not a {type(made).__name__}")
    return made


def _is_python(target: str) -> bool:
    """Return True if a target names a module that is there, as a function's name at a server hardly does."""
    module = target.partition(":")[0]
    with modules_here():
        try:
            return all(map(str.isidentifier, module.split("."))) and find_spec(module) is not None
        except ImportError:  # of the package that it would be in
            return False


def opened(
    target: str,
    loaded: KTask | CompiledModel | Callable[[], Any] | str,
    endpoint: str | None,
    server: str | None,
    keys: Sequence[Path] | None,
    name: str | None,
    weights: Mapping[str, float],
    policy: str | PolicyFactory | None,
    *,
    ray: bool,
) -> AbstractContextManager[LoadedService]:
    """Return the service with the target, for a `with` statement. The arguments are those of the command.

    Raises:
        InvalidRequest, NotInitialized: there is no such service, or it does not take such a target.
    """
    from kaas.api.function import Function
    from kaas.bench.inference.protocol import at_endpoint
    from kaas.bench.service import at_server, in_pool
    from kaas.pool.on_processes.names import PoolName, running_names

    if endpoint is not None:
        if not isinstance(loaded, str):
            raise InvalidRequest("--inference-protocol takes the name of a model there, not a file")
        return at_endpoint(endpoint, loaded)
    if server is not None:
        try:
            return at_server(loaded if isinstance(loaded, str) else made_of(target, loaded), server, keys)
        except NotInitialized as error:
            message = f"{target} registers in a pool; at a server a client registers, client.register(..., name='mine')"
            raise InvalidRequest(f"{message}, and kaas bench mine --server ... measures it") from error
    assert not isinstance(loaded, str), "a name needs a server"
    if name is not None and not ray and PoolName(name).running(wait=False) is None:
        there = "".join(f"; {printable(each)} runs" for each in running_names())
        raise NotInitialized(f"no pool {name!r} runs on this machine without Ray{there}")
    own = "kaas" if ray else f"bench-{token_hex(4)}"
    return in_pool(partial(made_of, target, loaded, Function), name or own, weights, policy, ray=ray)
