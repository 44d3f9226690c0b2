"""The page of the API is made of the docstrings, and has every public name."""

from __future__ import annotations

import pytest

import kaas
from tests import reference


def test_every_public_name_is_on_the_page() -> None:
    assert reference.listed() == {*kaas.__all__}


def test_the_page_is_made_of_the_docstrings() -> None:
    pytest.importorskip("ray", reason="kaas.invoke and others need Ray")
    assert reference.PAGE.read_text() == reference.page(), "python -m tests.reference --write"


def test_every_public_name_has_a_signature_and_words_of_its_own() -> None:
    page = reference.PAGE.read_text()
    for name in kaas.__all__:
        if name not in ("Null", "KaasError", "errors"):
            assert f"kaas.{name}(" in page, name
