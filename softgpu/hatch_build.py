"""Puts the software GPU's driver library, compiled, into a wheel, so that who installs it needs no C compiler."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DriverHook(BuildHookInterface[Any]):
    """For wheels, not for the editable ones of development: there the driver follows its sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        sys.path.insert(0, self.root)
        from softgpu import build

        where = build.PACKED.relative_to(Path(self.root).resolve())
        build_data["force_include"][str(build.build())] = str(where)
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        # the library is C that Python never imports: any Python 3 will do, but not any machine
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
