"""From lesson sources to the two editions of the notebooks.

`lessons/*.md` hold prose, code and roles. `source` reads them, `answers` puts the reference answers in,
`build` runs each notebook and writes `solutions/` and, through nbgrader, `notebooks/`.
"""
