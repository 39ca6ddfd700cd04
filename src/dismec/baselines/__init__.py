"""The other systems of the paper's comparison, each written from its paper in one module.

They exist for comparison and are kept as small as their papers allow.

In: normalized rows and their labels, as scipy CSR matrices. Out: fitted systems that predict the
best k labels of rows. May use: `data`, `features`, `measure`, `solve`, `model`, `training`.
"""
