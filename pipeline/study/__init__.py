"""What was obtained, for Python: results and partitions as DataFrames. ``import pfl`` is the way in."""
