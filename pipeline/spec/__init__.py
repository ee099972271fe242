"""The language of specs: YAML becomes frozen runs and tables, with an address for every error."""
