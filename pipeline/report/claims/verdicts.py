"""What may be said of a claim, in the order in which it is told; pages, the index and counts all go by this list."""

HOLDS, FAILS, WITHIN_NOISE, ONE_SEED = "holds", "fails", "within noise", "one seed: undecided"
NOT_YET, TRIAL = "not yet", "no verdict"

VERDICTS = (HOLDS, FAILS, WITHIN_NOISE, ONE_SEED, NOT_YET, TRIAL)
