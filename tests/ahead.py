"""The programs of a parametrised test, begun two at a time before their cases ask for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import pytest

T = TypeVar("T")


@contextmanager
def begun(
    request: pytest.FixtureRequest, test: str, run: Callable[[str], T], names: Iterable[str]
) -> Iterator[dict[str, Future[T]]]:
    """Yield futures of `run` for the names whose case of the test was chosen."""
    chosen = {item.name for item in request.session.items}
    threads = ThreadPoolExecutor(2)
    try:
        yield {name: threads.submit(run, name) for name in names if f"{test}[{name}]" in chosen}
    finally:
        threads.shutdown(cancel_futures=True)
