"""What the stages of the pipeline do: data → partition → train → evaluate → report, one module each.

A module imports no more than its stage needs, since its import closure is the stage's code fingerprint.
"""
