"""Everything that talks to DVC: its command line, what it has recorded and is told, its remote."""
