"""What a compilation means in work, and what training would refuse, before anything runs."""
