"""What was obtained, for Python and for others: DataFrames, models, splits. ``import pipeline`` is the way in."""
