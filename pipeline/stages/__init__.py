"""The work of each stage of the pipeline. Stages that are one function of `pipeline.report` have no module here.

A module imports no more than its stage needs, since the fingerprint of the stage's code covers all of its imports.
"""
