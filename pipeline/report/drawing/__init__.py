"""What every part of a report is made of: sections with pictures and printed numbers, and panels of series."""
