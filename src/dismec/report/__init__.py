"""Data and models → facts, tables, figures and HTML pages for people.

In: paths, models, tables. Out: plain values for JSON, SVG, HTML. May use: `data`,
`features`, `measure`, `solve`, `model`, `training`.
"""
