"""Pure functions on tensors for methods."""
