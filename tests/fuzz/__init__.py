"""Mutated models, data files and requests.

None may crash, hang, end in a traceback, or take memory out of proportion to the input.
"""
