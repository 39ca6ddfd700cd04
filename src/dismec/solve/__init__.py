"""Rows and labels → weights, block by block, on the threads of this process.

In: CSR rows with their transform, label indicators, solver parameters. Out: blocks of pruned
weights with statistics. May use: `data`, `features`.
"""
