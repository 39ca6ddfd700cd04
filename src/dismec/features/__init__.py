"""Texts and raw rows → the rows for training and scoring; stored with the model.

In: texts, CSR matrices. Out: vocabularies, transformed rows. May use: `data`.
"""
