"""What remote clients have at a server, as its gateway sees it: functions, and objects by name."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Any, Protocol

from kaas.pool.functions import RegisteredFunction
from kaas.remote import wire

Kept = (
    wire.Upload
    | wire.Chunk
    | wire.Register
    | wire.Functions
    | wire.Unregister
    | wire.Put
    | wire.Get
    | wire.Delete
    | wire.Objects
)
"""Messages about what a client has here."""
Said = tuple[wire.FromServer, Sequence[Any]]
"""An answer, and the frames behind it."""


class Runnable(Protocol):
    """A function of a client's, ready to be invoked.

    Fields:
        given: names of the inputs that travel. scalars: kinds by name. iterations: the scalar that says how often the
            kernels run, "" for none. outputs: their names, in declared order.
        constants: the pool's object of all constants together. before, after: the server's cTasks around it.
    """

    @property
    def function(self) -> RegisteredFunction: ...
    @property
    def constants(self) -> Any | None: ...
    @property
    def given(self) -> Collection[str]: ...
    @property
    def scalars(self) -> Mapping[str, str]: ...
    @property
    def iterations(self) -> str: ...
    @property
    def outputs(self) -> tuple[str, ...]: ...
    @property
    def before(self) -> str: ...
    @property
    def after(self) -> str: ...


class Stored(Protocol):
    """An object of a client's. ref: the pool's."""

    @property
    def ref(self) -> Any: ...
    @property
    def nbytes(self) -> int: ...


class Holdings(Protocol):
    """Belongs to the pool's event loop. client: the name of a key. All raise KaasError."""

    def answer(self, client: str, message: Kept, frames: Sequence[Any]) -> Said | Awaitable[Said]:
        """What a message leads to. frames: those behind the header. An Awaitable only where something takes long."""
        ...

    def function(self, client: str, name: str) -> Runnable:
        """By name or key."""
        ...

    def value(self, client: str, name: str) -> Stored: ...

    def check_room(self, client: str, outputs: Mapping[str, int]) -> None:
        """Whether outputs of so many bytes can be stored under these names."""
        ...

    def store(self, client: str, name: str, dtype: str, shape: tuple[int, ...], data: Any) -> Awaitable[None]:
        """Give an output a name among a client's objects."""
        ...
