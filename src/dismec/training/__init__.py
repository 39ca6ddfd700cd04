"""Data and parameters → a finished model: the recipe, resuming, held-out rows, edits.

In: X and Y or texts, `TrainingParams`. Out: a model directory, or a `Model` in memory. May use:
`data`, `features`, `measure`, `solve`, `model`, `cluster`.
"""
