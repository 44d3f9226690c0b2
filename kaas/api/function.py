"""`kaas.call`, and a Function: kTasks registered with their constants bound, which calls name and Ray tasks carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from kaas.api.attached import current_session
from kaas.api.session import HERE, Session
from kaas.errors import InvalidRequest, KaasError, NotInitialized
from kaas.futures import Future
from kaas.ktask.arguments import Buffer, is_text
from kaas.ktask.graph import KTask
from kaas.ktask.request import RETRIES, check_deadline
from kaas.ktask.variant import of_shapes
from kaas.optional_ray import check_ray
from kaas.wire import specs
from kaas.wire.messages import Named
from kaas.wire.packing import CallOptions, FunctionSignature, ObjectSink, choose_signature, pack

MOST_RETRIES = 1 << 16


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a Function's invocations: see `invoke`.

    Raises:
        InvalidRequest
    """

    client: str | None = None
    deadline_s: float | None = None
    scalars: Mapping[str, Any] | None = None
    retries: int = RETRIES
    profile: bool = False
    keep: bool | Sequence[str] = False

    def __post_init__(self) -> None:
        if self.client is not None:
            if not is_text(self.client) or not self.client:
                raise InvalidRequest(f"a client is a name, not {self.client!r}")
            if type(self.client) is not str:  # numpy.str_, say, which the wire does not know
                object.__setattr__(self, "client", str(self.client))
        if self.deadline_s is not None:
            check_deadline(self.deadline_s)
        if type(self.retries) is bool or not isinstance(self.retries, int) or not 0 <= self.retries < MOST_RETRIES:
            raise InvalidRequest(f"retries is a number from 0 on, not {self.retries!r}")
        if not isinstance(self.profile, bool):
            raise InvalidRequest(f"profile is True or False, not {self.profile!r}")
        if not isinstance(self.keep, bool):
            if isinstance(self.keep, str) or not isinstance(self.keep, Sequence):
                raise InvalidRequest(f"keep is True, False or names of outputs, not {self.keep!r}")
            object.__setattr__(self, "keep", tuple(self.keep))

    def caller(self, session: Session) -> CallOptions:
        """Return the options of a call in a session."""
        client = session.client if self.client is None else self.client
        keep = self.keep if isinstance(self.keep, bool) else tuple(self.keep)
        return CallOptions(client, self.deadline_s, self.retries, self.profile, keep, session.id)


@lru_cache(maxsize=1024)
def signature_of(task: KTask) -> FunctionSignature:
    """Return the signature of a kTask without constants."""
    return FunctionSignature.of(task)


def call_options(session: Session, client: Any, deadline_s: Any, retries: Any, profile: Any) -> CallOptions:
    """Return the options of a call.

    Raises:
        InvalidRequest
    """
    try:
        return _caller(session.client, session.id, client, deadline_s, retries, profile)
    except TypeError:  # an option without a hash is invalid: Options raises the error
        return Options(client, deadline_s, None, retries, profile).caller(session)


@lru_cache(maxsize=1024, typed=True)
def _caller(
    own: str, session: str, client: str | None, deadline_s: float | None, retries: int, profile: bool
) -> CallOptions:
    options = Options(client, deadline_s, None, retries, profile)
    return CallOptions(options.client or own, options.deadline_s, options.retries, options.profile, session=session)


class BoundConstants:
    """The constants that a function and its copies have bound.

    Fields:
        constants: the reference to them. named: the same as an attachment of calls. awaited: those that were
            references; they are forgotten once they are complete.
    """

    __slots__ = ("__weakref__", "awaited", "constants", "named")

    def __init__(self, constants: Any, awaited: Sequence[Any]) -> None:
        self.constants = constants
        self.named = None if constants is None else Named(constants.binary())
        self.awaited = list(awaited)


class Function:
    """A registered kTask with its constants bound, or several that share them.

    The several are variants of a model, of which each invocation takes the one for the shapes of its inputs. A Function
    can be sent to Ray tasks and used there.
    """

    def __init__(
        self,
        pool: str,
        name: str,
        signatures: tuple[FunctionSignature, ...],
        bound: BoundConstants,
        options: Options | None = None,
    ) -> None:
        self._pool = pool
        self._name = name
        self._signatures = signatures
        self._bound = bound
        self._options = options or Options()
        self._caller: tuple[Session, CallOptions] | None = None

    @property
    def tasks(self) -> tuple[KTask, ...]:
        """The function's kTasks: of a model one for each variant, those for the smallest inputs first."""
        return tuple(signature.task for signature in self._signatures)

    @property
    def task(self) -> KTask:
        """The function's kTask, or the first of several."""
        return self._signatures[0].task

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The inputs that each invocation gives, in order: those that are not bound; of a model its first variant's."""
        return tuple(self._signatures[0].taken.values())

    @property
    def client(self) -> str | None:
        """The client that the function's options name; None stands for the caller."""
        return self._options.client

    def options(
        self,
        *,
        client: str | None = None,
        deadline_s: float | None = None,
        scalars: Mapping[str, Any] | None = None,
        retries: int | None = None,
        profile: bool | None = None,
        keep: bool | Sequence[str] | None = None,
    ) -> Function:
        """Return this function with other defaults for its invocations; a default that is None stays as it is."""
        given = {
            "client": client,
            "deadline_s": deadline_s,
            "scalars": scalars,
            "retries": retries,
            "profile": profile,
            "keep": keep,
        }
        changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return self._with(self._signatures, replace(self._options, **changed))

    def variant(self, /, **shapes: int | Sequence[int]) -> Function:
        """Return this function for inputs of these shapes only, by name: `f.variant(x=(8, 3, 224, 224)).remote(x=ref)`.

        Use it for calls with references, whose shapes cannot be seen. Some shapes may be left out if the others decide.

        Raises:
            UnexpectedInput: no such input. NoVariant: no variant is for these shapes. UndecidedVariant: several are.
        """
        number = of_shapes(self._name, [signature.taken for signature in self._signatures], shapes)
        return self._with((self._signatures[number],), self._options)

    def _with(self, signatures: tuple[FunctionSignature, ...], options: Options) -> Function:
        return Function(self._pool, self._name, signatures, self._bound, options)

    def remote(self, /, *arrays: Any, **inputs: Any) -> Any:
        """Invoke the function, as `invoke` does, with the same kinds of inputs and results. Inputs may include scalars.

        Inputs are given by name, or in order: that of the model, or that in which a kTask's kernels first read them
        (`KTask.inputs`).

        In a Ray task that has not called `init`, this attaches to the pool in which the function was registered.
        """
        session = HERE.usable() or current_session(self._pool)
        return invoke_function(self, session, inputs, self._with_scalars(inputs), arrays)

    def call(self, /, *arrays: Any, **inputs: Any) -> Future:
        """Invoke the function as `kaas.call` does: the result is a `kaas.Future`, and does not come through Ray."""
        session = HERE.usable() or current_session(self._pool)
        return call_function(self, session, inputs, self._with_scalars(inputs), arrays)

    def bind(self, /, *arrays: Any, **inputs: Any) -> Any:
        """Return a node of a Ray DAG, as a Ray task's `bind` gives it.

        Each `execute()` of the DAG invokes this function as `remote` does, with the values of the nodes among its
        inputs. A function of several outputs gives a named tuple of references. Compiled graphs
        (`experimental_compile`) consist of actors' methods only, and refuse it.
        """
        check_ray()
        from kaas.api.dag import FunctionNode

        return FunctionNode(self.remote, arrays, inputs, {})

    def _with_scalars(self, inputs: dict[str, Any]) -> Options:
        """Take the scalars out of the inputs; return the function's options with them."""
        first = self._signatures[0]
        among = [name for name in inputs if name in first.task.scalars and name not in first.taken]
        if not among:
            return self._options
        scalars = dict(self._options.scalars or {}) | {name: inputs.pop(name) for name in among}
        return replace(self._options, scalars=scalars)

    def _packed(
        self,
        session: Session,
        store: ObjectSink,
        inputs: Mapping[str, Any],
        options: Options,
        arrays: Sequence[Any],
        constants: Any,
    ) -> tuple[FunctionSignature, bytes, list[Any]]:
        bound = self._bound
        if bound.awaited and store.complete(bound.awaited):
            bound.awaited.clear()
        signature, inputs = choose_signature(self._name, self._signatures, arrays, inputs, store)
        caller = self._caller_in(session) if options is self._options else options.caller(session)
        return signature, *pack(signature, inputs, options.scalars, caller, store, constants, bound.awaited)

    def _caller_in(self, session: Session) -> CallOptions:
        """Return the options of a call by the function's own options, cached for the last session that called it."""
        if self._caller is None or self._caller[0] is not session:
            self._caller = session, self._options.caller(session)
        return self._caller[1]

    def _outlived(self) -> NotInitialized:
        """Return the error for constants whose owner Ray no longer knows."""
        return NotInitialized(f"{self!r} was registered in a Ray that has ended: register it again")

    def __reduce__(self) -> tuple[Any, ...]:
        parts = [(signature.task, signature.spec.bindings, signature.inputs) for signature in self._signatures]
        return _function, (self._pool, self._name, parts, self._bound.constants, self._bound.awaited, self._options)

    def __repr__(self) -> str:
        bound = dict.fromkeys(binding.buffer for signature in self._signatures for binding in signature.spec.bindings)
        variants = f", {len(self._signatures)} variants" if len(self._signatures) > 1 else ""
        return (
            f"<kaas.Function {self._name!r} in pool {self._pool!r}{variants}, constants: {', '.join(bound) or 'none'}>"
        )


def _function(
    pool: str,
    name: str,
    parts: Sequence[tuple[KTask, Sequence[specs.Binding], Sequence[Buffer] | None]],
    constants: Any,
    awaited: Sequence[Any],
    options: Options,
) -> Function:
    signatures = tuple(FunctionSignature.of(*part) for part in parts)
    return Function(pool, name, signatures, BoundConstants(constants, awaited), options)


def invoke_function(
    function: Function,
    session: Session,
    inputs: Mapping[str, Any],
    options: Options | None = None,
    arrays: Sequence[Any] = (),
) -> Any:
    """Invoke a function, for `Function.remote` and `invoke`. options: in place of the function's own."""
    constants = function._bound.constants
    options = options or function._options
    signature, message, refs = function._packed(session, session.store, inputs, options, arrays, constants)
    try:
        return session.send(signature, message, refs)
    except KaasError:
        raise
    except ValueError as error:
        raise function._outlived() from error


def call_function(
    function: Function,
    session: Session,
    inputs: Mapping[str, Any],
    options: Options | None = None,
    arrays: Sequence[Any] = (),
) -> Future:
    """Call a function, for `Function.call` and `kaas.call`. options: in place of the function's own."""
    session.check()
    options = options or function._options
    if options.keep:
        raise InvalidRequest(f"{function!r}: kaas.call gives arrays; only kaas.invoke can keep outputs on the device")
    calls, bound = session.calls, function._bound
    with calls.attachments(session.store) as attachments:
        signature, message, attached = function._packed(session, attachments, inputs, options, arrays, bound.named)
        try:
            return calls.submit(signature, message, attached, bound.constants, bound, options.deadline_s)
        except KaasError:
            raise
        except ValueError as error:
            raise function._outlived() from error


def known_to_the_pool(function: Function) -> tuple[str, tuple[str, ...]]:
    """Return a function's name for people, and the names by which the pool knows its kTasks with their constants."""
    constants = function._bound.constants
    at = "" if constants is None else f"@{constants.binary().hex()}"
    return function._name, tuple(each.key + (at if each.spec.bindings else "") for each in function._signatures)


def signatures_and_constants(function: Function) -> tuple[tuple[FunctionSignature, ...], list[Any]]:
    """Return a function's signatures, and the references to its constants, for cache commands."""
    bound = function._bound
    return function._signatures, [*(() if bound.constants is None else (bound.constants,)), *bound.awaited]


def variants_of(function: Function) -> tuple[Function, ...]:
    """Return a function for each of a function's kTasks, those for the smallest inputs first."""
    return tuple(function._with((each,), function._options) for each in function._signatures)


def call(
    task_or_function: KTask | Function,
    inputs: Mapping[str, Any],
    *,
    scalars: Mapping[str, Any] | None = None,
    client: str | None = None,
    deadline_s: float | None = None,
    retries: int = RETRIES,
    profile: bool = False,
) -> Future:
    """Run a kTask, without waiting for it and without Ray: the reply comes straight to this process.

    Use `kaas.invoke` for an ObjectRef, to compose with Ray tasks, and this function for the value.

    Args:
        task_or_function: a kTask, or a registered function.
        inputs: by buffer name, as of `kaas.invoke`. Values may be written to again as soon as this returns.
            The first call that names a reference of a pool on Ray sends one message by Ray before.
        scalars: as of `kaas.invoke`.
        client: as of `kaas.invoke`.
        deadline_s: as of `kaas.invoke`.
        retries: as of `kaas.invoke`.
        profile: as of `kaas.invoke`.

    Returns:
        A `kaas.Future`: `result()` and `await` give the output's array, read-only; for several outputs a named tuple of
        them, in declared order. The future is for this process only.

    Raises:
        NotInitialized, PoolStopped, InvalidRequest: here, for errors that can be seen here. All other errors come
            through the future, as the KaasError that they are.
    """
    session = HERE.usable() or current_session()
    if isinstance(task_or_function, Function):
        function = task_or_function
        if (scalars, client, deadline_s, retries, profile) != _CALL_DEFAULTS:
            function = function.options(
                client=client,
                deadline_s=deadline_s,
                scalars=scalars,
                retries=None if retries == RETRIES else retries,
                profile=profile or None,
            )
        return call_function(function, session, inputs)
    caller = call_options(session, client, deadline_s, retries, profile)
    if not isinstance(task_or_function, KTask):
        raise InvalidRequest(f"kaas.call takes a KTask or a Function, not {task_or_function!r}")
    session.check()
    calls = session.calls
    signature, attachments = signature_of(task_or_function), calls.attachments(session.store)
    with attachments:
        message, attached = pack(signature, inputs, scalars, caller, attachments)
        return calls.submit(signature, message, attached, deadline_s=deadline_s)


_CALL_DEFAULTS = (None, None, None, RETRIES, False)
