"""Files ⇄ matrices and texts: the only room that reads and writes data files.

In: paths, matrices and texts of a caller. Out: checked CSR matrices, label names, batches of texts,
files that appear whole. May use: `errors`, `cpu`.
"""
