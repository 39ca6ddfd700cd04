"""The comparison of systems: each trained on the same rows, in a process of its own, and judged.

In: training and test data, names of systems. Out: metrics with intervals, times, memory and sizes;
a page with drawings. May use: `data`, `features`, `measure`, `model`, `training`, `baselines`,
`report`.
"""
