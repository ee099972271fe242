"""A paper's claims as checks on the obtained and on the published values."""
