"""Python functions and classes with a device to themselves: `kaas.etask`."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, overload

from kaas.api.function import Function, Options, signatures_and_constants
from kaas.api.ray_session import STORE, RaySession, ray_session_for
from kaas.errors import InvalidRequest, InvalidShare, KaasError
from kaas.pool.executors.registered_etasks import etask_spec
from kaas.share import Share
from kaas.wire import specs
from kaas.wire.etask_values import packed, pickled, split
from kaas.worker import etask_actor
from kaas.worker.held.device_array import DeviceArray

RESERVED = ("remote", "options", "bind")
"""A class of eTasks cannot have methods of these names, since its handle has them."""
CLOSE = "close"
"""The method of an instance that a pool calls before it ends the worker."""


@overload
def etask(target: Callable[..., Any]) -> ETask: ...
@overload
def etask(*, num_gpus: int = 1, share: Share | None = None) -> Callable[[Callable[..., Any]], ETask]: ...
def etask(target: Callable[..., Any] | None = None, *, num_gpus: int = 1, share: Share | None = None) -> Any:
    """Make an eTask of a function or class: `@kaas.etask` or `@kaas.etask(num_gpus=1)`.

    Its calls run in a process that has a device to itself, one for each client and eTask. CUDA_VISIBLE_DEVICES names
    the device; where that is a software GPU, its driver is loaded. A function's module globals and a class's instance
    live on between calls, as long as the process does: the pool ends it when others need the device. An instance's
    `close`, if it has one, is called before, when no call runs.

    Args:
        target: the function or class.
        num_gpus: 1.
        share: its `sms` bound the SMs that kernels of the process may use, as long as it lives
            (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE): on the software GPU, and on a GPU where MPS's daemon runs; without the
            daemon a process has the whole GPU. None: all SMs.

    Raises:
        InvalidRequest: the target is no function or class, num_gpus is not 1, or the share is no Share.
        InvalidShare: the share has a quota or memory_bytes: a call of an eTask has its device, and all of its memory,
            until it ends.
    """
    if type(num_gpus) is not int or num_gpus != 1:
        raise InvalidRequest(f"an eTask has one GPU, not {num_gpus!r}: its worker owns one device of the pool")
    if share is not None and not isinstance(share, Share):
        raise InvalidRequest(f"share is a kaas.Share, not {share!r}")
    if share is not None and share != Share(share.sms):
        raise InvalidShare(f"a share of an eTask bounds its SMs, and neither its time nor its memory: {share}")
    sms = 1.0 if share is None else share.sms
    return partial(ETask, sms=sms) if target is None else ETask(target, sms=sms)


class ETask:
    """A Python function or class that runs on a device of its own, made by `etask`.

    An eTask can be sent to Ray tasks and used there. `remote` calls the function, or the instance's `__call__`;
    `.name.remote` calls a method of the instance.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        bound: tuple[tuple[Any, ...], dict[str, Any]] = ((), {}),
        options: Options | None = None,
        pool: str | None = None,
        sms: float = 1.0,
    ) -> None:
        if not (inspect.isfunction(target) or inspect.isclass(target)):
            raise InvalidRequest(f"kaas.etask takes a function or a class, not {target!r}")
        _refuse_coroutines(target)
        for name in RESERVED if inspect.isclass(target) else ():
            if hasattr(target, name):
                raise InvalidRequest(f"{target.__qualname__}: a class of eTasks cannot have a method named {name!r}")
        self._target = target
        self._bound = bound
        self._options = options or Options(retries=0)
        self._pool = pool
        self._sms = sms
        self._spec: specs.ETaskSpec | None = None
        self._code = b""
        self.__doc__ = target.__doc__

    def options(
        self, *, client: str | None = None, deadline_s: float | None = None, retries: int | None = None
    ) -> ETask:
        """Return this eTask with other defaults for its calls; a default that is None stays as it is.

        Args:
            client: the party that calls are billed to, and whose worker runs them; default: this program, by its
                script and Ray job.
            deadline_s: seconds within which a call must have ended.
            retries: how often a call may run again when its worker dies. The default is 0, since a call may have
                changed something.

        Raises:
            InvalidRequest
        """
        given = {"client": client, "deadline_s": deadline_s, "retries": retries}
        changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        made = ETask(self._target, self._bound, replace(self._options, **changed), self._pool, self._sms)
        made._spec, made._code = self._spec, self._code
        return made

    def bind(self, /, *args: Any, **kwargs: Any) -> ETask:
        """Return a class's eTask whose instance is made with these arguments. Each binding is an eTask of its own.

        Raises:
            InvalidRequest: the target is a function, or an argument is an ObjectRef.
        """
        if not inspect.isclass(self._target):
            raise InvalidRequest(f"{self._label} is a function: it takes its arguments with each call")
        if any(STORE.is_ref(value) for value in (*args, *kwargs.values())):
            raise InvalidRequest(f"{self._label}.bind takes values; references go to the calls")
        return ETask(self._target, (args, kwargs), self._options, self._pool, self._sms)

    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function, without waiting.

        Calls of one program run in the order in which the program made them, but for calls that wait for their
        references, and calls that run again. Arguments are anything that can be pickled; an ObjectRef among them, of
        any task or kTask, is replaced by its value before the call.

        Returns:
            An ObjectRef of the function's value; arrays in it are read-only.

        Raises:
            NotInitialized, PoolStopped, InvalidRequest: here. Through the ObjectRef ETaskFailed, whose cause is the
                function's error; InputFailed; ExecutorDied, DeadlineExceeded, DeviceUnavailable.
        """
        if inspect.isclass(self._target) and "__call__" not in dir(self._target):
            raise InvalidRequest(f"{self._label} has no __call__: call one of its methods")
        return self._call("", args, kwargs)

    def __getattr__(self, name: str) -> _Method:
        target = self.__dict__.get("_target")  # not set yet while __init__ runs
        method = getattr(target, name, None)
        if not inspect.isclass(target) or name.startswith("_") or name == CLOSE or not callable(method):
            raise AttributeError(f"{self!r} has no method {name!r} to call")
        _refuse_coroutines(method)
        return _Method(self, name)

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Raise InvalidRequest: an eTask runs by `remote`."""
        raise InvalidRequest(f"{self._label} is an eTask: call {self._label}.remote()")

    def __reduce__(self) -> tuple[Any, ...]:
        return ETask, (self._target, self._bound, self._options, self._pool, self._sms)

    def __repr__(self) -> str:
        return f"<kaas.ETask {self._label}>"

    @property
    def plain(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Return the function, or the class and the arguments of its instance."""
        return self._target, *self._bound

    @property
    def _label(self) -> str:
        return self._target.__qualname__.rpartition("<locals>.")[2]

    def _call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        session = ray_session_for(self._pool, "an eTask")
        session.check()
        spec = self._introduce(session)
        message, refs = _message(spec, method, self._options, session, args, kwargs)
        retries = self._options.retries
        call = session.pool.call.options(max_task_retries=retries) if retries else session.pool.call
        return call.remote(message, refs)

    def _introduce(self, session: RaySession) -> specs.ETaskSpec:
        """Register the eTask with the pool, once; the message needs no reply."""
        self._pool = session.name
        spec = self._spec or self._describe()
        if spec.key not in session.registered:
            described, code = specs.encode(spec), self._code
            session.register(spec.key, lambda: session.pool.register_etask.remote(described, code))
        return spec

    def _describe(self) -> specs.ETaskSpec:
        """Return the spec, whose key names the code, the bound arguments, and the folders of modules."""
        try:
            self._code = pickled((self._target, *self._bound))
        except Exception as error:  # pickling may raise anything
            raise InvalidRequest(f"{self._label} cannot be sent: {type(error).__name__}: {error}") from error
        path = [os.path.abspath(entry) for entry in sys.path]
        self._spec = etask_spec(self._label, self._code, path, self._sms)
        return self._spec


class _Method:
    """A method of an eTask's instance, to be called."""

    def __init__(self, etask: ETask, name: str) -> None:
        self._etask = etask
        self._name = name

    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the method, as `ETask.remote` does."""
        return self._etask._call(self._name, args, kwargs)


def device_constants(function: Function) -> dict[str, DeviceArray]:
    """Return the constants of a function as arrays on this eTask's device, without a copy, by the names of buffers.

    Call it inside an eTask, with a Function that is an argument of the eTask or one of its globals. A holder, a process
    for each device, has the constants once for all eTasks of the pool; the eTask's process maps them. The arrays are
    read-only; `kaas.DeviceArray` says which libraries take them. Constants that no eTask maps any more stay with the
    holder until it needs their room. If the holder ends, mapped constants stay, and the next holder starts empty.

    On Ray, a process that has a Function can read its constants (`ray.get`), and so it can here; a Function whose
    options name another client than the eTask's is refused.

    Returns:
        A `kaas.DeviceArray` for each constant; of a model those of all its variants. Empty for a function without.

    Raises:
        InvalidRequest: no eTask runs in this process, or the function is no Function or another client's.
        InputFailed: a constant was a reference whose task failed. WrongSize, WrongShape, WrongDtype: the value of a
            reference does not fit the buffer.
        OutOfDeviceMemory: the holder, or this process, has no room for the constants.
        DeviceLost: a kernel of this process has lost the device. DeviceUnavailable: holders end again and again.
    """
    here = etask_actor.constants
    if here is None:
        raise InvalidRequest(
            "kaas.device_constants is for eTasks: it maps constants on the device of an eTask's process"
        )
    if not isinstance(function, Function):
        raise InvalidRequest(f"kaas.device_constants takes a kaas.Function, not {function!r}")
    if function.client not in (None, here.client):
        raise InvalidRequest(f"{function!r} is of client {function.client!r}, and this eTask runs for {here.client!r}")
    signatures, refs = signatures_and_constants(function)
    bound = {each.buffer: each for signature in signatures for each in signature.spec.bindings}
    if not bound:
        return {}
    constants, *awaited = refs
    buffers = {each.name: each for signature in signatures for each in signature.task.inputs if each.name in bound}
    mapped = here.mapped(constants, awaited, sum(buffer.nbytes for buffer in buffers.values()))
    return {name: mapped.array(buffers[name], binding.entry, binding.offset_bytes) for name, binding in bound.items()}


def _refuse_coroutines(target: Any) -> None:
    if inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target):
        raise InvalidRequest(f"{target.__qualname__} is a coroutine function; an eTask is an ordinary one")


def _message(
    spec: specs.ETaskSpec,
    method: str,
    options: Options,
    session: RaySession,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[bytes, list[Any]]:
    """Return a call's message and the references attached to it.

    Raises:
        InvalidRequest
    """
    arguments, named = split(args, kwargs, 0)
    try:
        parts = packed(arguments)
        stored = []
        if not parts:
            arguments, named = split(args, kwargs, 1)
            stored = [STORE.put(arguments)]
    except KaasError:
        raise
    except Exception as error:  # pickling may raise anything
        what = f"{spec.label}.{method}" if method else spec.label
        raise InvalidRequest(f"an argument of {what} cannot be sent: {type(error).__name__}: {error}") from error
    caller = options.caller(session)
    ready = not named or STORE.complete(named)
    call = specs.ETaskCall(
        spec.key,
        caller.client,
        caller.deadline_s,
        caller.retries,
        ready,
        method,
        parts,
        session.id,
        next(session.registered_etasks),
    )
    return specs.encode(call), [*stored, *named]
