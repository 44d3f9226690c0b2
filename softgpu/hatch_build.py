"""Puts the compiled driver library of the software GPU into a wheel: installing the wheel needs no C compiler."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DriverHook(BuildHookInterface[Any]):
    """The hook of wheels. It leaves editable wheels alone: there the driver is built from its sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the driver, and add it to a wheel that is not editable."""
        if self.target_name != "wheel" or version == "editable":
            return
        sys.path.insert(0, self.root)
        from softgpu import build

        where = build.PACKED.relative_to(Path(self.root).resolve())
        build_data["force_include"][str(build.build())] = str(where)
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        # Python never imports the C library: the wheel fits every Python 3, but only this platform
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
