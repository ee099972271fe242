"""The page of a partition."""
