"""The command line: one file per verb, all registered in `app.py`.

A verb reads its flags, calls one function of the product and prints what it gives back. Logic that a Python user
could want belongs into the packages, not here. Heavy imports stand inside the verbs, so that `--help` is quick.
"""
