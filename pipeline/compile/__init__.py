"""Compile runs and tables to DVC's stage files, and check the code and the inputs of stages that run."""
