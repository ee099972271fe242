"""What figures are drawn with, and what every report draws: its convergence curves, and analyses without a figure."""
