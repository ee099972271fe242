"""Kept results: one small readable file per run below ``results/``, in git, so that they outlive machines."""
