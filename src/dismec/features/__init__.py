"""Texts and raw rows → the rows that are trained on and scored; travels with the model.

In: texts, CSR matrices. Out: vocabularies, transformed rows. May use: `data`.
"""
