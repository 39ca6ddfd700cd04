"""Compile the native code with every installed compiler, for every instruction set.

Exits with 1 if there is any warning. Warnings and flags are those of CMakeLists.txt. Compilers for
Windows only get the headers: the bindings need Python's headers for Windows.

    python .ci/compilers.py [COMPILER…]
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NATIVE = ROOT / "native"
COMPILERS = ("g++", "clang++", "clang++-14", "clang++-19", "x86_64-w64-mingw32-g++-posix")
OF_X86 = ("avx2", "avx512")


def flags() -> tuple[list[str], dict[str, list[str]]]:
    """Return the warnings, and the flags of each instruction set of this architecture."""
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    (warnings,) = re.findall(r"^set\(warnings (.+)\)$", text, re.MULTILINE)
    sets = {
        name: rest.split()
        for name, rest in re.findall(r"^ *dismec_kernels\((\w+)([^)]*)\)", text, re.M)
    }
    on_x86 = platform.machine() in ("x86_64", "AMD64")
    return warnings.split(), {
        k: v for k, v in sets.items() if k == "base" or (k in OF_X86) == on_x86
    }


def sources(compiler: str, folder: Path) -> list[tuple[Path, list[str]]]:
    """Return the files to compile, with the options that each needs."""
    headers = [p for p in sorted(NATIVE.rglob("*.hpp")) if p.name != "bindings.hpp"]
    every = folder / "every_header.cpp"
    every.write_text("".join(f'#include "{p.relative_to(NATIVE).as_posix()}"\n' for p in headers))
    if "mingw" in compiler:
        return [(every, [])]
    import nanobind

    system = [nanobind.include_dir(), sysconfig.get_paths()["include"]]
    options = [option for place in system for option in ("-isystem", place)]
    options += ["-DDISMEC_MODULE=m", '-DDISMEC_ISA="m"', "-DNB_DOMAIN=m"]
    return [(every, []), *((path, options) for path in sorted(NATIVE.rglob("*.cpp")))]


def main() -> int:
    """Compile everything, and print the warnings."""
    wanted = sys.argv[1:] or [c for c in COMPILERS if shutil.which(c)]
    warnings, sets = flags()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:

        def messages(case: tuple[str, str, tuple[Path, list[str]]]) -> str:
            compiler, isa, (path, options) = case
            command = [compiler, "-std=c++20", "-fsyntax-only", "-ffp-contract=off", "-Werror"]
            command += [*warnings, f"-I{NATIVE}", *options, *sets[isa], str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return f"== {compiler}, {isa}: {path.name}\n{done.stderr}" if done.returncode else ""

        cases = [
            (compiler, isa, source)
            for compiler in wanted
            for isa, source in product(sets, sources(compiler, Path(folder)))
        ]
        found = [text for text in pool.map(messages, cases) if text]
    sys.stdout.write("".join(found))
    sys.stdout.write(
        f"{', '.join(wanted)}: {len(cases)} compilations, {len(found)} with warnings\n"
    )
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
