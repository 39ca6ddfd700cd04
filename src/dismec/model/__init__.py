"""Blocks of weights ⇄ a model directory, and predictions from it.

In: weights with names, vocabulary and calibration; a directory. Out: a `Model` that ranks, assigns
and explains labels. May use: `data`, `features`, `measure`, `solve`.
"""
