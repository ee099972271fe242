"""Pure functions on tensors that methods are made of."""
