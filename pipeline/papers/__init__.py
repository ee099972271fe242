"""The pages over several specs: a page per paper and the index, written again when what they show has changed."""
