"""Building blocks of reports: sections with pictures and printed numbers, and panels of series."""
