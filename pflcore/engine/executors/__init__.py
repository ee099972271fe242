"""Executors: how a cohort's local training is carried out. All of them give the same result."""
