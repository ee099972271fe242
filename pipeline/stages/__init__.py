"""What the stages of the pipeline do, a module each but where it is one function of `pipeline.report`.

A module imports no more than its stage needs, since its import closure is the stage's code fingerprint.
"""
