"""Data: samples as arrays and as files, their assignment to clients, and the training data of a client."""
