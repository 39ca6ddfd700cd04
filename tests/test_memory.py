"""How much memory, and how many CPUs, this process may use."""

from __future__ import annotations

import pytest

from dismec.cpu import available_cpus, available_memory, physical_memory

GB = 1 << 30


def groups(root, lines, **limits):
    """Create a root directory whose control groups have these limits."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("".join(f"{line}\n" for line in lines))
    for path, limit in limits.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{limit}\n")
    return root


def test_without_control_groups_the_memory_of_the_machine_counts(tmp_path):
    assert physical_memory(tmp_path) > 0


@pytest.mark.parametrize(
    ("lines", "limits"),
    [
        (["0::/job"], {"job/memory.max": GB // 64}),
        (["0::/job/step"], {"job/memory.max": GB // 64, "job/step/memory.max": "max"}),
        (["0::/"], {"memory.max": GB // 64}),
        (["0::/on/the/host"], {"memory.max": GB // 64}),
        (["4:memory:/job"], {"memory/job/memory.limit_in_bytes": GB // 64}),
        (
            ["11:cpu,cpuacct:/job", "4:memory:/docker/1f", "0::/"],
            {"memory/memory.limit_in_bytes": GB // 64, "memory/docker/1f/other": 1},
        ),
        (
            ["0::/a/b"],
            {"a/memory.max": GB // 64, "a/b/memory.max": GB // 32},
        ),
    ],
)
def test_a_limit_of_a_control_group_counts(tmp_path, lines, limits):
    assert physical_memory(groups(tmp_path, lines, **limits)) == GB // 64


@pytest.mark.parametrize("limit", ["max", str(1 << 62), "", "nonsense", "-1"])
def test_without_a_limit_the_memory_of_the_machine_counts(tmp_path, limit):
    machine = physical_memory(tmp_path / "nothing")
    found = physical_memory(groups(tmp_path, ["0::/job"], **{"job/memory.max": limit}))
    assert found == machine


def test_other_groups_do_not_count(tmp_path):
    machine = physical_memory(tmp_path / "nothing")
    root = groups(tmp_path, ["0::/job"], **{"other/memory.max": 1, "jobs/memory.max": 1})
    assert physical_memory(root) == machine


@pytest.mark.parametrize(
    ("line", "folder", "limit", "stat"),
    [
        ("0::/job", "job", "memory.max", "anon 3000\nfile 9000\nkernel 96\nshmem 1000"),
        (
            "4:memory:/job",
            "memory/job",
            "memory.limit_in_bytes",
            "cache 9000\ntotal_rss 3096\ntotal_shmem 1000",
        ),
    ],
)
def test_what_a_control_group_has_left_is_available(tmp_path, line, folder, limit, stat):
    root = groups(tmp_path, [line], **{f"{folder}/{limit}": 8192, f"{folder}/memory.stat": stat})
    assert available_memory(root) == 4096
    (root / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 3 kB\n")
    assert available_memory(root) == 3072
    (root / "sys/fs/cgroup" / folder / "memory.stat").write_text("anon 9000\ntotal_rss 9000\n")
    assert available_memory(root) == 0


@pytest.mark.parametrize(
    ("lines", "limits"),
    [
        (["0::/job"], {"job/cpu.max": "50000 100000"}),
        (["0::/job/step"], {"job/cpu.max": "100000 100000", "job/step/cpu.max": "max 100000"}),
        (["0::/on/the/host"], {"cpu.max": "1000 100000"}),
        (
            ["3:cpu,cpuacct:/job"],
            {"cpu/job/cpu.cfs_quota_us": 100000, "cpu/job/cpu.cfs_period_us": 100000},
        ),
    ],
)
def test_a_limit_of_cpus_counts(tmp_path, lines, limits):
    assert available_cpus(groups(tmp_path, lines, **limits)) == 1


@pytest.mark.parametrize(
    "limit", ["max 100000", "6400000 100000", "", "nonsense", "1", "-1 100000"]
)
def test_without_a_limit_all_cpus_count(tmp_path, limit):
    everything = available_cpus(tmp_path / "nothing")
    root = groups(tmp_path, ["0::/job", "3:cpu:/"], **{"job/cpu.max": limit})
    (root / "sys/fs/cgroup/cpu").mkdir()
    (root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").write_text("-1")
    (root / "sys/fs/cgroup/cpu/cpu.cfs_period_us").write_text("100000")
    assert available_cpus(root) == everything >= 1


def test_parts_of_a_cpu_are_rounded_up(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(64), raising=False)
    root = groups(tmp_path, ["0::/job"], **{"job/cpu.max": "150000 100000"})
    assert available_cpus(root) == 2
