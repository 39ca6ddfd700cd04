"""The same blocks solved, and the same shards scored, on the workers of a Dask cluster.

In: a connection; blocks to solve, or rows to score. Out: block receipts, top k. May use: `data`,
`features`, `measure`, `solve`, `model`.
"""
