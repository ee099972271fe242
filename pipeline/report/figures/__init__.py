"""Figures beside the table, and what they are drawn with."""
