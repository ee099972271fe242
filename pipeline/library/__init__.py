"""What was obtained, for Python and for others: DataFrames, models, splits. ``import pfl`` is the way in."""
