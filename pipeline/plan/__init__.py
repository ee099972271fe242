"""What a compilation means in work, before anything runs."""
