"""Invalid options of an invocation are refused where the program gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kaas.api.function import Options
from kaas.errors import InvalidRequest


@pytest.mark.parametrize(
    "wrong", [{"deadline_s": True}, {"deadline_s": 0}, {"deadline_s": -1}, {"retries": True}, {"retries": -1}]
)
def test_no_such_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(wrong))):
        Options(**wrong)


@pytest.mark.parametrize("client", ["", "\ud800", 1, b"ann"])
def test_a_client_is_a_name(client: Any) -> None:
    with pytest.raises(InvalidRequest, match="a client is a name"):
        Options(client)


def test_a_string_of_another_kind_is_a_name() -> None:
    assert type(Options(np.str_("ann")).client) is str
