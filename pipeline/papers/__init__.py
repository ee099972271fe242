"""Pages over several specs: a page per paper and the index, written again when their inputs have changed."""
