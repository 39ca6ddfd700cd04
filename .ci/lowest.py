"""pyproject.toml → constraints that pin each requirement to its lowest version."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

BUILD = "--build"  # the requirements of building, instead of those of running and testing


def lowest(requirement: str) -> str:
    """Turn ``name>=version`` into ``name==version``."""
    found = re.fullmatch(r"([\w.-]+)>=([\w.]+)", requirement)
    if found is None:
        raise SystemExit(f"pyproject.toml: {requirement} names no lowest version")
    return f"{found[1]}=={found[2]}"


def constraints(pyproject: Path, *, build: bool = False) -> list[str]:
    """Return the requirements of the package, its extras and its tests, or of its build."""
    read = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    if build:
        return sorted(map(lowest, read["build-system"]["requires"]))
    project = read["project"]
    extras = [e for name, e in project["optional-dependencies"].items() if name != "all"]
    groups = [project["dependencies"], *extras, read["dependency-groups"]["test"]]
    return sorted({lowest(requirement) for group in groups for requirement in group})


if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    found = constraints(root / "pyproject.toml", build=BUILD in sys.argv[1:])
    sys.stdout.write("".join(f"{line}\n" for line in found))
