"""The heading of every table: the machine, the date and the versions."""

from __future__ import annotations

import datetime
import platform
from importlib.metadata import version

from dismec.cpu import available_cpus, cpu_name, kernels


def print_heading(*packages: str, **versions: str) -> None:
    """Print the machine, the date, and the versions of dismec, `packages` and `versions`."""
    found = {name: version(name) for name in ("dismec", "numpy", "scipy", *packages)} | versions
    print(f"{cpu_name()}, {available_cpus()} cores, {kernels.isa} kernels; {datetime.date.today()}")
    print(", ".join(f"{name} {number}" for name, number in found.items()))
    print(f"Python {platform.python_version()}, {platform.system()} {platform.release()}\n")
