"""CPUs and memory of this machine, and the extension module built for its CPU."""

from __future__ import annotations

import importlib
import math
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dismec import _native_base
from dismec.errors import DataError, DismecError

if TYPE_CHECKING:
    kernels = _native_base

T = TypeVar("T")
R = TypeVar("R")


def _load_kernels(wanted: str | None) -> object:
    """Import the best extension module for this CPU, or the one that ``DISMEC_ISA`` names."""
    available = _native_base.cpu_isas()
    if wanted and wanted not in available:
        raise DismecError(
            f"DISMEC_ISA={wanted}: this CPU supports {', '.join(available)}; "
            "name one of them or unset it"
        )
    return importlib.import_module(f"dismec._native_{wanted or available[0]}")


if not TYPE_CHECKING:
    kernels = _load_kernels(os.environ.get("DISMEC_ISA"))


def thread_count(threads: int | None) -> int:
    """Return the number of threads to use: as many as there are CPUs if `threads` is None."""
    if threads is None:
        return available_cpus()
    if threads < 1:
        raise DataError(f"threads is {threads}; expected at least 1")
    return threads


def in_threads(
    work: Callable[[T], R],
    items: Iterable[T],
    threads: int,
    stop: Callable[[], None] = lambda: None,
) -> list[R]:
    """Return the results of `work` for all items, in their order.

    After an error or a keyboard interrupt, no further items are started, and `stop` is called so
    that it can end those in progress.
    """
    with thread_map(threads) as run:
        try:
            return list(run(work, items))
        except BaseException:
            stop()
            raise


@contextmanager
def thread_map(threads: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """Yield a function like `map` that uses several threads, or `map` itself for one thread.

    After an error, no further items are started.
    """
    if threads <= 1:
        yield map
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="dismec") as pool:
        yield pool.map


def available_cpus(root: Path = Path("/")) -> int:
    """Return the number of CPUs that this process may use.

    A control group may allow fewer than there are (``docker run --cpus=2``). `root` as in
    `physical_memory`.
    """
    n_cpus: float = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        n_cpus = len(os.sched_getaffinity(0))
    for folder in _groups(root, "cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            if len(numbers := _numbers_in(folder, *names)) == 2:
                n_cpus = min(n_cpus, numbers[0] / max(numbers[1], 1))
    return max(1, math.ceil(n_cpus))


def cpu_name() -> str:
    """Return the name of this machine's CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def physical_memory(root: Path = Path("/")) -> int | None:
    """Return how many bytes of memory this process may use, if known.

    This is the memory of the machine, or the lowest limit of the control groups of this process:
    a container or a batch job may have less. `root` is the directory of ``proc`` and ``sys``.
    """
    if sys.platform == "win32":
        return _windows_memory()[0]
    limits = [limit for _, limit in _group_limits(root)]
    limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(limits)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the control groups of this process for a controller, and their parents."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        # "0::/path" in version 2, "4:memory:/path" in version 1.
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controller
        else:
            continue
        group = top / path.strip("/")
        # In a container, the path may be that on the host; `top` is the group of the container.
        for folder in (group, *group.parents):
            yield folder
            if folder == top:
                break


def _numbers_in(folder: Path, *names: str) -> list[float]:
    """Return the numbers in files of a control group; "max" and "-1" stand for no limit."""
    try:
        words = " ".join((folder / name).read_text() for name in names).split()
        return [math.inf if word in ("max", "-1") else int(word) for word in words]
    except (OSError, ValueError):
        return []


def _group_limits(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield the control groups with a memory limit, and this limit."""
    for folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            for limit in _numbers_in(folder, name):
                if limit < math.inf:
                    yield folder, int(limit)


def available_memory(root: Path = Path("/")) -> int | None:
    """Return how many bytes can be allocated without swapping, or else all memory, if known.

    In a control group with a limit, it is what the group has left; `root` as in `physical_memory`.
    """
    if sys.platform == "win32":
        return _windows_memory()[1]
    free = _first_numbers(root / "proc/meminfo").get("MemAvailable:")
    found = [limit - _group_use(folder) for folder, limit in _group_limits(root)]
    found += [] if free is None else [free << 10]
    return max(0, min(found)) if found else physical_memory(root)


def _group_use(folder: Path) -> int:
    """Return the bytes used by a control group, without file pages, which can be dropped."""
    stat = _first_numbers(folder / "memory.stat")
    if "anon" in stat:  # version 2
        return stat["anon"] + stat.get("shmem", 0) + stat.get("kernel", 0)
    return stat.get("total_rss", 0) + stat.get("total_shmem", 0)


def _first_numbers(path: Path) -> dict[str, int]:
    """Return the number in each line of a file by the word before it; empty without the file."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except (OSError, ValueError):
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}


if sys.platform == "win32":

    def _windows_memory() -> tuple[int, int]:
        """Return the total and the free memory of the machine in bytes."""
        import ctypes
        import struct

        # MEMORYSTATUSEX: its own size, a percentage, and seven counts of bytes.
        status = bytearray(struct.pack("=II7Q", 64, *[0] * 8))
        ctypes.windll.kernel32.GlobalMemoryStatusEx((ctypes.c_char * 64).from_buffer(status))
        _, _, total, free, *_ = struct.unpack("=II7Q", status)
        return total, free
