"""Every error a user of KaaS can meet: one tree, with fields, that survives pickling and Ray."""

from __future__ import annotations

import inspect
import pickle
from contextlib import suppress
from typing import Any

PRINTED_BYTES = 16 << 10
"""Of what kernels have printed, what an error carries at most."""
MEMCHECK_TELLS_MORE = '; SOFTGPU_MEMCHECK=1 or kaas.Device("software", memcheck=True) names the access and the buffer'
"""The end of a bad access's message. It is for those who own the device: a server's clients cannot check there."""


class KaasError(Exception):
    """Base of all errors of KaaS.

    The message says what is wrong in one sentence; what a program may want to act on stands in fields, declared as
    annotations by each subclass. Plain classes on purpose: slotted or frozen ones lose their type in Ray.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        unknown = fields.keys() - declared(type(self))
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        for name, value in fields.items():
            setattr(self, name, value)
        self._sealed: bytes | None = None

    def seal_cause(self, cause: bytes) -> None:
        """Give it a pickled cause, which is `__cause__` where this error arrives and stays unopened on its way there:
        who passes it on need not know its class, nor trust it."""
        self._sealed = cause

    @property
    def message(self) -> str:
        return str(self.args[0])

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that were given, by name."""
        # by attribute, not by __dict__: what Ray raises is a subclass that passes attributes on to the original error
        return {name: getattr(self, name) for name in sorted(declared(type(self))) if hasattr(self, name)}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fields, sealed_cause(self))


def declared(cls: type) -> set[str]:
    """The fields that errors of a class may have."""
    return {name for base in cls.__mro__ for name in inspect.get_annotations(base)}


def _rebuild(cls: type[KaasError], message: str, fields: dict[str, Any], sealed: bytes | None) -> KaasError:
    error = cls(message, **fields)
    if sealed is not None:
        error.seal_cause(sealed)
    return opened(error)


def opened(error: KaasError) -> KaasError:
    """The same error, its sealed cause made anew: only of an error that comes from a trusted process."""
    if error._sealed is not None:
        with suppress(Exception):  # of a class that is not here, say; it may be known where this error goes next
            error.__cause__, error._sealed = pickle.loads(error._sealed), None
    return error


def sealed_cause(error: KaasError) -> bytes | None:
    """Its cause as it travels; None without one, or if it cannot: a foreign exception may hold anything."""
    if error._sealed is not None or error.__cause__ is None:
        return error._sealed
    try:
        return pickle.dumps(error.__cause__)
    except Exception:  # noqa: BLE001 - whatever a foreign __reduce__ raises, the answer is no
        return None


# --- the kTask itself is wrong


class InvalidGraph(KaasError, ValueError):
    """A kTask, kernel, buffer or argument that cannot mean anything."""

    task: str
    kernel: str
    buffer: str


class DuplicateBuffer(InvalidGraph):
    """Two different buffers of one name."""


class OutputNotWritten(InvalidGraph):
    """A listed output that no kernel writes."""


class StructFieldOutside(InvalidGraph):
    """A patched field that does not lie inside its struct, or that overlaps another."""

    offset_bytes: int
    field_bytes: int
    struct_bytes: int


class InvalidLiteral(InvalidGraph):
    """A literal whose value its kind cannot hold."""

    kind: str
    value: Any


class ScalarConflict(InvalidGraph):
    """One scalar name used with two kinds."""

    scalar: str
    kinds: tuple[str, ...]


# --- a compiled model is wrong


class InvalidModel(KaasError, ValueError):
    """A model whose variants, inputs and constants do not fit each other."""

    model: str
    buffer: str


class CorruptModel(KaasError, ValueError):
    """A file that is no model, or not all of one, or one of another version; `reason` says what is wrong in `path`."""

    path: str
    reason: str


# --- the code image is wrong, or does not fit the kTask


class InvalidCode(KaasError):
    """A code image, or the use a kTask makes of it."""

    library: str
    symbol: str
    kernel: str
    task: str


class CorruptImage(InvalidCode):
    """Bytes that are no PTX, cubin or fatbin, or only a part of one."""


class UnsupportedCode(InvalidCode):
    """Code that this device cannot run: another architecture, or instructions the software GPU refuses."""

    instructions: tuple[str, ...]


class UnknownSymbol(InvalidCode):
    """A kernel that its library does not hold."""

    near: tuple[str, ...]


class Unprovided(InvalidCode):
    """Code of a provided library that its provider did not give.

    Fields:
        provider, name, version: what was asked for, as in `kaas.Library.provided`.
    """

    provider: str
    name: str
    version: str


class MissingProvider(Unprovided):
    """No such provider is installed; `installed` are those that are."""

    installed: tuple[str, ...]


class NotProvided(Unprovided):
    """A provider that is here does not know the library, or not in that version; providers raise it themselves.

    Fields:
        has: the versions that it has, if it knows the library.
    """

    has: tuple[str, ...]


class ProviderFailed(Unprovided):
    """A provider that could not give what it knows, such as code that it has to compile first; its error is the
    cause."""


class ArgumentMismatch(InvalidCode):
    """Arguments that differ in number or size from the parameters in the code image."""

    argument: int
    expected_bytes: int
    given_bytes: int
    expected_count: int
    given_count: int


# --- code that is made here


class InvalidTarget(KaasError, ValueError):
    """A compilation for devices that do not exist, or that the compiler does not know; `known` are those it does."""

    target: str
    known: tuple[str, ...]


class CompileFailed(KaasError):
    """A source that its compiler refuses.

    Fields:
        compiler: with its version. source: what the source is called. line: of the first error, if the compiler says.
        log: all that the compiler said.
    """

    compiler: str
    source: str
    line: int
    log: str


class MissingPackage(KaasError):
    """Something that is to be compiled or read by a package that is not installed; `install` is what pip calls it."""

    package: str
    install: str


# --- one invocation is wrong


class InvalidRequest(KaasError, ValueError):
    """An invocation that does not fit its kTask."""

    task: str
    buffer: str
    scalar: str


class MissingInput(InvalidRequest):
    """An input that was not given."""


class UnexpectedInput(InvalidRequest):
    """A name that is no input of the kTask."""

    near: tuple[str, ...]


class WrongSize(InvalidRequest):
    """An input of another number of bytes than its buffer; with a View, one that ends too early."""

    expected_bytes: int
    given_bytes: int


class WrongShape(WrongSize):
    """An array of as many bytes as its buffer, but of another shape: of (48, 64) where (64, 48) is taken."""

    expected_shape: tuple[int, ...]
    given_shape: tuple[int, ...]


class WrongDtype(InvalidRequest):
    """An input of another element type than its buffer."""

    expected: str
    given: str


class NotContiguous(InvalidRequest):
    """An input whose bytes do not lie in C order without gaps, or an object that has no bytes at all."""


class NoVariant(InvalidRequest):
    """Inputs of shapes or dtypes for which a model was not compiled.

    Fields:
        given: what is known of the inputs, by name, as `float32[8, 4]`. variants: likewise, of each that there is.
    """

    given: dict[str, str]
    variants: tuple[dict[str, str], ...]


class UndecidedVariant(InvalidRequest):
    """Inputs that fit several variants of a model, since the shapes of references cannot be known here. Fields as
    above, of those that they fit."""

    given: dict[str, str]
    variants: tuple[dict[str, str], ...]


class MissingScalar(InvalidRequest):
    """A scalar that was not given."""


class WrongScalar(InvalidRequest):
    """A scalar of the wrong type or range, or one that the kTask does not have."""

    kind: str
    value: Any


class InputFailed(InvalidRequest):
    """An input reference whose task failed; the cause is `__cause__` and, in words, `reason`."""

    reason: str


# --- the device cannot


class DeviceError(KaasError):
    """A call of the CUDA driver that failed."""

    call: str
    code: int
    code_name: str
    kernel: str
    device: str
    task: str


class LaunchLimit(DeviceError):
    """A grid, block or shared memory beyond what the device or the kernel allows."""

    limit: int
    given: int
    what: str


class OutOfDeviceMemory(DeviceError):
    """Device memory that could not be had although the request fits the device.

    Fields:
        buffer, buffer_bytes: the largest that the request needs there, if it is about a whole request.
    """

    needed_bytes: int
    free_bytes: int
    buffer: str
    buffer_bytes: int


class RequestTooLarge(DeviceError):
    """A request that no empty device of this size could hold. buffer, buffer_bytes: the largest that it needs there."""

    buffer: str
    buffer_bytes: int
    needed_bytes: int
    capacity_bytes: int
    excess_bytes: int


class DeviceUnavailable(DeviceError):
    """No such device here, or no driver."""


class DeviceLost(DeviceError):
    """An error that sticks: the process that owns the device must end.

    Fields:
        kernel: the one that failed, where the driver says so: the software GPU does.
        printed: what kernels have printed while it ran, the newest `PRINTED_BYTES` of it, where that can be had: of the
            software GPU. Nothing tells the kernels of one request from those that ran beside it.
    """

    printed: str


# --- the pool and the path to it


class NotInitialized(KaasError):
    """A call before `kaas.init` or after `kaas.shutdown`."""


class InvalidConfig(KaasError, ValueError):
    """A configuration that no pool can have."""

    field: str


class ConfigMismatch(KaasError, ValueError):
    """`kaas.init` with another configuration than the running pool's."""

    pool: str
    differences: tuple[str, ...]


class PoolStopped(KaasError):
    """A request that met a pool on its way down."""

    pool: str


class Unreachable(KaasError, ConnectionError):
    """A server that a remote client cannot speak to: no server is there, or one of both does not take the other's key.

    Fields:
        reason: what the last attempt met.
    """

    address: str
    reason: str


class QueueFull(KaasError):
    """A request that the pool has no room to queue: too many wait already, of all clients or of this one.

    Fields:
        client: whose limit it is; not there if it is that of the pool. limit, queued: in requests.
    """

    client: str
    limit: int
    queued: int


class Cancelled(KaasError):
    """A request of a remote client that this client has cancelled."""


class UnknownSession(KaasError):
    """A question of a remote client that has not said Hello, or not for long: it does, and asks again."""


class StepFailed(KaasError):
    """A cTask of the server, before or after a remote client's kTask, raised something; `error_type` is its class's
    name, "" if the step's process has ended."""

    step: str
    error_type: str


class QuotaExceeded(KaasError):
    """Something of a remote client's that is beyond what its key grants it.

    Fields:
        client: whose quota it is. quota: which, as in `kaas.server.usage.quotas.Quotas`. limit, used: in its unit.
        needed: how much more was asked for. retry_s: when it will be taken in; not there if only the client can make
            room.
    """

    client: str
    quota: str
    limit: float
    used: float
    needed: float
    retry_s: float


class UsageUnavailable(KaasError):
    """What clients use cannot be written down, so that nothing is given either, or not be read; `path` says where."""

    path: str
    reason: str


class KeyReused(InvalidRequest):
    """A request came under the idempotency key of another one: another function, other inputs or scalars.

    Fields:
        key: of idempotency. function: as the earlier request named it.
    """

    key: str
    function: str


class UnknownFunction(InvalidRequest):
    """A remote client has registered nothing by this name or key."""

    function: str


class UnknownObject(InvalidRequest):
    """A remote client has put nothing under this name."""

    object: str


class MissingContent(InvalidRequest):
    """Libraries or a value that a remote client names by their hashes, and has not uploaded, or not all of them; an
    upload that is used for nothing gives way to newer ones."""

    hashes: tuple[str, ...]


class WrongContent(InvalidRequest):
    """An upload whose bytes are not what was announced: `found` is their SHA-256, `hash` the announced one. The server
    has forgotten it."""

    hash: str
    found: str


class NotAllowed(KaasError):
    """Code that this server does not take from remote clients: a kTask, by its key, that is neither on its list nor
    signed by a key that it trusts, a library by its hash, or one of a provider that it does not offer."""

    library: str
    task: str


class Quarantined(KaasError):
    """A function that is not run any more, since it ended devices; `story` says when, where and how. Or a client, whose
    functions ended too many devices within an hour.

    Fields:
        function: its label; "" if all requests of the client wait. client, retry_s: whose, and in how many seconds its
            requests run again; only then.
    """

    function: str
    faults: int
    story: tuple[str, ...]
    client: str
    retry_s: float


class ETaskFailed(KaasError):
    """A Python function or method that raised; its exception is `__cause__` if it can travel.

    Fields:
        error_type: the exception's type by name. traceback: as Python prints it.
    """

    function: str
    error_type: str
    traceback: str


class ExecutorDied(KaasError):
    """The executor's process ended while it ran the request, each time it was tried."""

    executor: str
    attempts: int
    reason: str


class ResultLost(KaasError):
    """A finished result that is gone, with the pool's process say, and could not be computed anew."""

    device: int
    reason: str


class DeadlineExceeded(KaasError, TimeoutError):
    """A request that did not end in time.

    Fields:
        deadline_s: how long it had. waited_s: since it arrived, if it was the pool that gave up.
        kernels: those that ran when an executor ended it, where the driver says so. printed: as of DeviceLost.
    """

    deadline_s: float
    waited_s: float
    task: str
    kernels: tuple[str, ...]
    printed: str


class InvalidScenario(KaasError, ValueError):
    """A scenario for the simulator that cannot mean anything; `path` says where, as `functions.A.memory_mb` or
    `requests[3]`."""

    path: str


class InvalidRecord(KaasError, ValueError):
    """A file that is no record of a pool's events, from this line on."""

    path: str
    line: int


class PolicyError(KaasError):
    """A scheduling policy that raised or broke an invariant; `story` holds its last events."""

    policy: str
    story: tuple[str, ...]
