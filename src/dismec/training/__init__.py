"""Train models from data and parameters: stages, resuming, held-out rows, texts, edits.

In: X and Y or texts, and `TrainingParams`. Out: a model directory, or a `Model` in memory. May use:
`data`, `features`, `measure`, `solve`, `model`, `cluster`.
"""
