"""Data: samples as arrays and as files, who holds which of them, and what a client trains on."""
