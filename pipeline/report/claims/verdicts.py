"""What may be said of a claim, in the order in which it is told; pages, the index and counts all go by this list."""

from pipeline.report.statistics.noise import NO_VERDICT, WITHIN

HOLDS, FAILS, WITHIN_NOISE, ONE_SEED = "holds", "fails", WITHIN, "one seed: undecided"
NOT_YET, TRIAL = "not yet", NO_VERDICT

VERDICTS = (HOLDS, FAILS, WITHIN_NOISE, ONE_SEED, NOT_YET, TRIAL)
