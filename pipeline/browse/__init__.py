"""What there is to choose from, on the terminal: specs, registered entries, partitions."""
