"""Access to DVC: its command line, its lock files, settings and cache, and the recording of stages."""
