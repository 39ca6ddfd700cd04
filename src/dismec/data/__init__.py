"""Files ⇄ matrices and texts: the only package that reads and writes data files.

In: paths, matrices and texts from callers. Out: checked CSR matrices, label names, batches of
texts, complete files. May use: `errors`, `cpu`.
"""
