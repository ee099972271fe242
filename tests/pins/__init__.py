"""Pins: what must not change while code moves. See CONTRIBUTING.md; ``make pins`` compares all of them."""
