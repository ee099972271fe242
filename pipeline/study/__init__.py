"""A person's own study: beginning one, and adding parts to it."""
