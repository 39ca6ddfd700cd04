"""Solving the same blocks, and scoring the same shards, on the workers of a Dask cluster.

In: a connection; blocks to solve, or rows to score. Out: block receipts, top k. May use: `data`,
`features`, `measure`, `solve`, `model`.
"""
