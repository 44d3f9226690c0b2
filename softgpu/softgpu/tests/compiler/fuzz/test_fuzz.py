"""Bad images end in an error with a type, or run: no crash, no hang. `make fuzz` tries 10,000."""

from __future__ import annotations

from pathlib import Path

import pytest

from softgpu.tests.compiler.fuzz.campaign import campaign

pytestmark = pytest.mark.processes

IMAGES = 40


def test_bad_images(tmp_path: Path) -> None:
    findings, outcomes = campaign(20261121, IMAGES, tmp_path)
    assert not findings
    assert sum(outcomes.values()) == IMAGES
    assert 0 < outcomes["refused"] < IMAGES - outcomes["uncompiled"]  # others run, on a loaded machine not to their end
