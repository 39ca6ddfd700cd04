"""A model directory → predictions over HTTP, and a page to try them.

In: requests. Out: JSON, metrics, HTML. May use: `data`, `features`, `measure`, `model`.
"""
