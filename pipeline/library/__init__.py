"""Access to results from Python: DataFrames, models and partitions. Users import it as ``pipeline``."""
