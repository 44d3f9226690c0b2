"""Invalid options of an invocation are refused where the program gives them."""

from __future__ import annotations

from typing import Any

import pytest

from kaas.api.function import Options
from kaas.errors import InvalidRequest


@pytest.mark.parametrize(
    "wrong", [{"deadline_s": True}, {"deadline_s": 0}, {"deadline_s": -1}, {"retries": True}, {"retries": -1}]
)
def test_no_such_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(wrong))):
        Options(**wrong)
