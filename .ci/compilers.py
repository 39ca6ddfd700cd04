"""Compile the native code with every installed compiler, for every instruction set.

Exits with 1 if there is any warning. Warnings and flags are those of CMakeLists.txt. Other systems
are checked with cross compilers: GCC for ARM and for Windows, and Zig's Clang (the package ziglang)
for macOS, for Linux with musl and for Windows. They compile for the best instruction set only.
Compilers for Windows only get the headers: the bindings need Python's headers for Windows.

    python .ci/compilers.py [COMPILER…]
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
NATIVE = ROOT / "native"
X86, ARM = ("base", "avx2", "avx512"), ("base", "neon")
ONE_SET = "_(neon|avx2|avx512|portable|by_element)$"  # headers for one instruction set
HERE = X86 if platform.machine() in ("x86_64", "AMD64") else ARM


class Compiler(NamedTuple):
    """A command, the instruction sets to compile for, and whether it can compile the bindings."""

    command: tuple[str, ...]
    sets: tuple[str, ...] = HERE
    bindings: bool = True

    @property
    def is_installed(self) -> bool:
        """Whether the command, or the Python package that provides it, is here."""
        if self.command[0] == sys.executable:
            return importlib.util.find_spec(self.command[2]) is not None
        return shutil.which(self.command[0]) is not None


def zig(target: str, isa: str, *, bindings: bool = True) -> Compiler:
    """Return Zig's Clang for a target such as aarch64-macos."""
    unused = "-Wno-unused-command-line-argument"  # of options that Zig adds
    command = (sys.executable, "-m", "ziglang", "c++", "-target", target, unused)
    return Compiler(command, (isa,), bindings)


COMPILERS = {
    "g++": Compiler(("g++",)),
    "clang++": Compiler(("clang++",)),
    "clang++-14": Compiler(("clang++-14",)),
    "clang++-19": Compiler(("clang++-19",)),
    "g++ for ARM": Compiler(("aarch64-linux-gnu-g++",), ("neon",)),
    "g++ for Windows": Compiler(("x86_64-w64-mingw32-g++-posix",), ("avx512",), bindings=False),
    "zig for macOS, x86-64": zig("x86_64-macos", "avx512"),
    "zig for macOS, ARM": zig("aarch64-macos", "neon"),
    "zig for musl, x86-64": zig("x86_64-linux-musl", "avx512"),
    "zig for musl, ARM": zig("aarch64-linux-musl", "neon"),
    "zig for Windows": zig("x86_64-windows-gnu", "avx512", bindings=False),
}


def flags() -> tuple[list[str], dict[str, list[str]]]:
    """Return the warnings, and the flags of each instruction set."""
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    (warnings,) = re.findall(r"^set\(warnings (.+)\)$", text, re.MULTILINE)
    sets = re.findall(r"^ *dismec_kernels\((\w+)([^)]*)\)", text, re.MULTILINE)
    return warnings.split(), {name: rest.split() for name, rest in sets}


def sources(compiler: Compiler, folder: Path) -> list[tuple[Path, list[str]]]:
    """Return the files to compile, with the options that each needs."""
    every = folder / "every_header.cpp"
    # Headers for one instruction set are included by those for all.
    headers = [
        path.relative_to(NATIVE).as_posix()
        for path in sorted(NATIVE.rglob("*.hpp"))
        if path.name != "bindings.hpp" and not re.search(ONE_SET, path.stem)
    ]
    every.write_text("".join(f'#include "{path}"\n' for path in headers))
    if not compiler.bindings:
        return [(every, [])]
    import nanobind

    system = [nanobind.include_dir(), sysconfig.get_paths()["include"]]
    options = [option for place in system for option in ("-isystem", place)]
    options += ["-DDISMEC_MODULE=m", '-DDISMEC_ISA="m"', "-DNB_DOMAIN=m"]
    return [(every, []), *((path, options) for path in sorted(NATIVE.rglob("*.cpp")))]


def main() -> int:
    """Compile everything, and print the warnings."""
    wanted = sys.argv[1:] or [name for name, found in COMPILERS.items() if found.is_installed]
    if unknown := [name for name in wanted if name not in COMPILERS]:
        raise SystemExit(f"{', '.join(unknown)}: choose from {'; '.join(COMPILERS)}")
    warnings, options_of = flags()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = Path(name)
        environment = os.environ | {"ZIG_LOCAL_CACHE_DIR": name, "ZIG_GLOBAL_CACHE_DIR": name}

        def messages(number: int, compiler: str, isa: str, path: Path, options: list[str]) -> str:
            command = [*COMPILERS[compiler].command, "-std=c++20", "-ffp-contract=off", "-Werror"]
            # Zig expects an object file; the others can stop earlier.
            is_zig = "ziglang" in command
            command += ["-c", "-o", str(folder / f"{number}.o")] if is_zig else ["-fsyntax-only"]
            command += [*warnings, f"-I{NATIVE}", *options, *options_of[isa], str(path)]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=environment
            )
            return f"== {compiler}, {isa}: {path.name}\n{done.stderr}" if done.returncode else ""

        cases = [
            (compiler, isa, path, options)
            for compiler in wanted
            for isa in COMPILERS[compiler].sets
            for path, options in sources(COMPILERS[compiler], folder)
        ]
        found = [
            text for text in pool.map(lambda i: messages(i, *cases[i]), range(len(cases))) if text
        ]
    sys.stdout.write("".join(found))
    sys.stdout.write(
        f"{'; '.join(wanted)}: {len(cases)} compilations, {len(found)} with warnings\n"
    )
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
