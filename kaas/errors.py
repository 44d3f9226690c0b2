"""All errors that users of KaaS can meet: one tree, with fields, that survives pickling and Ray."""

from __future__ import annotations

import inspect
import pickle
from contextlib import suppress
from typing import Any

PRINTED_BYTES = 16 << 10
"""Bytes of kernels' printed output that an error carries at most."""
MEMCHECK_TELLS_MORE = '; SOFTGPU_MEMCHECK=1 or kaas.Device("software", memcheck=True) names the access and the buffer'
"""The end of a bad access's message, for owners of the device: a server's clients cannot set this."""
MEMCHECK_ELSEWHERE = (
    '; on a machine of your own, kaas.run_local with device=kaas.Device("software", memcheck=True) names the access and'
    " the buffer"
)
"""The end of that message for a server's clients."""


class KaasError(Exception):
    """Base of all errors of KaaS.

    The message says in one sentence what is wrong. Facts for programs are in fields, which each subclass declares as
    annotations. These are plain classes, since slotted or frozen ones lose their type in Ray.
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
        """Attach a pickled cause, which becomes `__cause__` where this error arrives.

        On its way it stays pickled: processes that pass it on need not know its class, nor trust it.
        """
        self._sealed = cause

    @property
    def message(self) -> str:
        """The text of the error."""
        return str(self.args[0])

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that were given, by name."""
        # by attribute, not by __dict__: Ray raises a subclass that gets its attributes from the original error
        return {name: getattr(self, name) for name in sorted(declared(type(self))) if hasattr(self, name)}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fields, sealed_cause(self))


def declared(cls: type) -> set[str]:
    """Return the names of the fields that errors of a class may have."""
    return {name for base in cls.__mro__ for name in inspect.get_annotations(base)}


def _rebuild(cls: type[KaasError], message: str, fields: dict[str, Any], sealed: bytes | None) -> KaasError:
    error = cls(message, **fields)
    if sealed is not None:
        error.seal_cause(sealed)
    return opened(error)


def opened(error: KaasError) -> KaasError:
    """Return the error with its sealed cause unpickled; only for an error from a trusted process."""
    if error._sealed is not None:
        with suppress(Exception):  # its class may be missing here, and known where this error goes next
            error.__cause__, error._sealed = pickle.loads(error._sealed), None
    return error


def sealed_cause(error: KaasError) -> bytes | None:
    """Return an error's pickled cause; None without a cause, or if it cannot be pickled."""
    if error._sealed is not None or error.__cause__ is None:
        return error._sealed
    try:
        return pickle.dumps(error.__cause__)
    except Exception:  # noqa: BLE001 - a foreign __reduce__ may raise anything
        return None


# --- the kTask itself is wrong


class InvalidGraph(KaasError, ValueError):
    """A kTask, kernel, buffer or argument that has no meaning."""

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
    """A file at `path` that is no model, a part of one, or one of another version; `reason` says which."""

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


class CompileLimitExceeded(InvalidCode):
    """Code that takes more to compile than a pool allows, before it has a device. The message says which limit.

    Fields:
        limit_s: processor seconds (`Config.compile_limit_s`), and as many seconds in which the compiler wants no
            processor. limit_bytes: of memory.
    """

    limit_s: float
    limit_bytes: int


class NotCompiled(InvalidCode):
    """Code that the cache of compiled code lacks, in an executor that compiles nothing (`Config.isolation`).

    The code was compiled ahead of the request, or is of a kind of which no compiler makes sense. The request runs again
    after its code was compiled again, a few times at most.
    """


class CannotFence(InvalidCode):
    """PTX that cannot be confined to a window of memory: it is broken, or an instruction is not known to be safe.

    Fields:
        line: of the PTX, from 1. instruction: its text there, shortened. reason: why it is refused.
    """

    line: int
    instruction: str
    reason: str


class UnknownSymbol(InvalidCode):
    """A kernel that its library does not hold."""

    near: tuple[str, ...]


class Unprovided(InvalidCode):
    """Code of a provided library that its provider did not give.

    Fields:
        provider, name, version: those of `kaas.Library.provided`.
    """

    provider: str
    name: str
    version: str


class MissingProvider(Unprovided):
    """No such provider is installed; `installed` are those that are."""

    installed: tuple[str, ...]


class NotProvided(Unprovided):
    """An installed provider does not know the library, or not in that version; providers raise this error.

    Fields:
        has: the versions that it has, if it knows the library.
    """

    has: tuple[str, ...]


class ProviderFailed(Unprovided):
    """A provider that failed to give code that it knows, for example to compile it; its error is the cause."""


class ArgumentMismatch(InvalidCode):
    """Arguments that differ in number or size from the parameters in the code image."""

    argument: int
    expected_bytes: int
    given_bytes: int
    expected_count: int
    given_count: int


# --- code that is compiled here


class InvalidTarget(KaasError, ValueError):
    """A compilation for devices that do not exist, or that the compiler does not know; it knows those in `known`."""

    target: str
    known: tuple[str, ...]


class CompileFailed(KaasError):
    """A source that its compiler refuses.

    Fields:
        compiler: with its version. source: the name of the source. line: of the first error, if the compiler says.
        log: the whole output of the compiler.
    """

    compiler: str
    source: str
    line: int
    log: str


class MissingPackage(KaasError):
    """A package that must compile or read something is not installed; `install` is its name for pip."""

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
        given: dtype and shape of the inputs as far as known, by name, as `float32[8, 4]`. variants: the same of all
            variants.
    """

    given: dict[str, str]
    variants: tuple[dict[str, str], ...]


class UndecidedVariant(InvalidRequest):
    """Inputs that fit several variants of a model, since the shapes of references are not known here.

    Fields:
        given, variants: as in `NoVariant`, of the variants that they fit.
    """

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


# --- the device fails


class DeviceError(KaasError):
    """A call of the CUDA driver that failed."""

    call: str
    code: int
    code_name: str
    kernel: str
    device: str
    task: str


class LaunchLimit(DeviceError):
    """A grid, a block, shared or local memory beyond what the device or the kernel allows."""

    limit: int
    given: int
    what: str


class OutOfDeviceMemory(DeviceError):
    """Device memory that could not be allocated although the request fits the device.

    Fields:
        buffer, buffer_bytes: the largest buffer of the request, if the error is about a whole request.
    """

    needed_bytes: int
    free_bytes: int
    buffer: str
    buffer_bytes: int


class RequestTooLarge(DeviceError):
    """A request that no empty device of this size can hold. buffer, buffer_bytes: the largest buffer of the request."""

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
        kernel: the kernel that failed, if the driver names it, as the software GPU does.
        printed: output of kernels while it ran, the newest `PRINTED_BYTES` of it, from the software GPU only. It is
            not known which of several running requests printed it.
    """

    printed: str


# --- the pool and the path to it


class NotInitialized(KaasError):
    """A call before `kaas.init` or after `kaas.shutdown`."""


class InvalidConfig(KaasError, ValueError):
    """An invalid configuration."""

    field: str


class InvalidShare(KaasError, ValueError):
    """A share with parts that no device has, leasts that exceed a device together, or a promise that no share keeps.

    Fields:
        of: the name of the function or client whose share it is. others: the names of the shares that have been
            promised what this one needs. best_s: the least latency that the function's profile has.
    """

    of: str
    others: tuple[str, ...]
    best_s: float


class ConfigMismatch(KaasError, ValueError):
    """`kaas.init` with another configuration than the running pool's."""

    pool: str
    differences: tuple[str, ...]


class PoolStopped(KaasError):
    """A request to a pool that stops or has stopped."""

    pool: str


class Unreachable(KaasError, ConnectionError):
    """A server that a remote client cannot reach: there is no server, or one of both refuses the other's key.

    Fields:
        reason: the error of the last attempt.
    """

    address: str
    reason: str


class QueueFull(KaasError):
    """A request that the pool cannot queue: too many wait already, of all clients or of this one.

    Fields:
        client: the client of the limit; absent for the limit of the pool. limit, queued: in requests.
    """

    client: str
    limit: int
    queued: int


class Cancelled(KaasError):
    """A request of a remote client that this client has cancelled."""


class UnknownSession(KaasError):
    """A request of a remote client that has no session, or no more: it begins one, and repeats the request."""


class StepFailed(KaasError):
    """A cTask of the server, before or after a remote client's kTask, raised an exception.

    Fields:
        error_type: the name of the exception's class; "" if the step's process has ended.
    """

    step: str
    error_type: str


class QuotaExceeded(KaasError):
    """A remote client needs more than its key grants.

    Fields:
        client: the client of the quota. quota: its name in `kaas.server.usage.quotas.Quotas`. limit, used: in its unit.
        needed: the additional amount of the request. retry_s: seconds until there is room; absent if only the client
            can make room.
    """

    client: str
    quota: str
    limit: float
    used: float
    needed: float
    retry_s: float


class StateUnavailable(KaasError):
    """A server's disk is full, or its files of clients' data cannot be written for another reason.

    Fields:
        retry_s: the seconds after which it may be tried again; absent if the operator must make room first.
    """

    retry_s: float


class UsageUnavailable(KaasError):
    """The file of clients' usage at `path` cannot be read, or cannot be written; then no request is served either."""

    path: str
    reason: str


class KeyReused(InvalidRequest):
    """A request with the idempotency key of another one, which had another function, other inputs or other scalars.

    Fields:
        key: the idempotency key. function: the name of the function in the earlier request.
    """

    key: str
    function: str


class UnknownFunction(InvalidRequest):
    """A function that the remote client has not registered, by name or key."""

    function: str


class UnknownObject(InvalidRequest):
    """An object that the remote client has not put, by name."""

    object: str


class MissingContent(InvalidRequest):
    """Libraries or a value that a remote client names by hash, and has not uploaded, or not completely.

    Newer uploads replace unused ones.
    """

    hashes: tuple[str, ...]


class WrongContent(InvalidRequest):
    """An upload with other bytes than announced: `found` is their SHA-256, `hash` the announced one.

    The server has dropped it.
    """

    hash: str
    found: str


class NotAllowed(KaasError):
    """Code that this server does not accept from remote clients.

    It is a kTask, by its key, that is neither on the server's list nor signed by a trusted key; a library, by its hash;
    or a library of a provider that the server does not offer.
    """

    library: str
    task: str


class Quarantined(KaasError):
    """A function that does not run any more, since it ended devices, or a client whose functions ended too many.

    Fields:
        function: its label; "" if all requests of the client wait, whose functions ended too many devices within an
            hour. client, retry_s: the client, and the seconds until its requests run again; only in that case.
        story: when, where and how the devices ended.
    """

    function: str
    faults: int
    story: tuple[str, ...]
    client: str
    retry_s: float


class OutOfHostMemory(KaasError, OSError):
    """Memory, or a file for shared memory, that a process cannot have; `reason` is the system's."""

    reason: str


class ETaskFailed(KaasError):
    """A Python function or method that raised; its exception is `__cause__` if it can travel.

    Fields:
        error_type: the name of the exception's type. traceback: as Python prints it.
    """

    function: str
    error_type: str
    traceback: str


class ExecutorDied(KaasError):
    """The executor's process ended while it ran the request, at each attempt."""

    executor: str
    attempts: int
    reason: str


class CompilerDied(KaasError):
    """The process that compiled the request's code was killed at each attempt, and by no limit of the pool."""

    attempts: int
    reason: str


class CodeUnavailable(KaasError):
    """The request's compiled code cannot be written, as on a full disk. A later request tries it again."""

    reason: str


class ResultLost(KaasError):
    """A finished result that is lost, for example with the pool's process, and could not be computed again."""

    device: int
    reason: str


class DeadlineExceeded(KaasError, TimeoutError):
    """A request that did not end in time.

    Fields:
        deadline_s: the time that it had. waited_s: the time since its arrival, if the pool ended it.
        kernels: those that ran when an executor ended it, if the driver names them. printed: as in DeviceLost.
    """

    deadline_s: float
    waited_s: float
    task: str
    kernels: tuple[str, ...]
    printed: str


class AdmissionRefused(KaasError):
    """A request that would end later than its function promises, and may not run late: it has not run.

    Fields:
        slo_s: the promise, in seconds. expected_s: the seconds after which the request was expected to end.
    """

    slo_s: float
    expected_s: float
    task: str


class InvalidScenario(KaasError, ValueError):
    """An invalid scenario for the simulator.

    Fields:
        path: the place of the mistake, as `functions.A.memory_mb` or `requests[3]`.
    """

    path: str


class InvalidRecord(KaasError, ValueError):
    """A file that is no record of a pool's events; `line` is the first wrong line."""

    path: str
    line: int


class NotRecorded(KaasError, LookupError):
    """A request, an epoch or an attempt that a record does not have."""

    path: str
    request: int


class InvalidTrace(KaasError, ValueError):
    """A file of a published trace that cannot be read as such; `line` is the first wrong line, 0 if it is the file."""

    path: str
    line: int


class InferenceFailed(KaasError):
    """A server of the Open Inference Protocol that refused a request, or broke the protocol."""


class WrongAnswer(KaasError):
    """A measurement that counts for nothing: a request got a result that is not the one of its inputs."""


class PolicyError(KaasError):
    """A scheduling policy that raised or broke an invariant; `story` holds its last events."""

    policy: str
    story: tuple[str, ...]
