"""Data and models → facts, tables, drawings and pages for a person.

In: paths, models, tables of a sweep. Out: plain values that JSON can hold, SVG, HTML. May use:
`data`, `features`, `measure`, `solve`, `model`, `training`.
"""
