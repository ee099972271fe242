"""What a report says, and how it is written in each format."""
