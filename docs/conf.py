"""How Sphinx builds the documentation; `make docs` runs it."""

import importlib.metadata

project = "dismec"
author = "The dismec developers"
html_show_copyright = False
release = importlib.metadata.version("dismec")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_click",
]
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
# Pygments has no language for CSV.
suppress_warnings = ["misc.highlighting_failure"]
# `name` in a docstring is code, as in Markdown.
default_role = "code"

html_theme = "furo"
html_title = f"dismec {release}"
exclude_patterns = ["_build"]
