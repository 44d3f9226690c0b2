"""What went wrong at a server, as its remote client raises it."""

from __future__ import annotations

import inspect
from functools import cache

from kaas import errors
from kaas.errors import KaasError, declared
from kaas.wire import protocol


def error_of(failure: protocol.Failure) -> KaasError:
    """As it is raised: of its class, or of KaasError if that is not known here."""
    cls = getattr(errors, failure.error, None)
    if not (isinstance(cls, type) and issubclass(cls, KaasError)):
        return KaasError(f"{failure.error}: {failure.message}")
    tuples = _tuples_of(cls.__name__)
    return cls(
        failure.message,
        **{
            name: tuple(value) if name in tuples and isinstance(value, list) else value
            for name, value in failure.fields.items()
            if name in declared(cls)
        },
    )


@cache
def _tuples_of(name: str) -> frozenset[str]:
    """The fields of an error that are tuples; msgpack has lists only."""
    bases = getattr(errors, name).__mro__
    annotations = {name: text for base in bases for name, text in inspect.get_annotations(base).items()}
    return frozenset(name for name, text in annotations.items() if str(text).startswith("tuple["))
