"""The comparison of systems: each is trained on the same rows in its own process and evaluated.

In: training and test data, names of systems. Out: metrics with intervals, times, memory and sizes;
a page with figures. May use: `data`, `features`, `measure`, `model`, `solve`, `training`,
`report`.
"""
