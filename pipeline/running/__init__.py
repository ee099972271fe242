"""``pfl run``: finds stale stages, schedules them along the graph, executes them in parallel, records them in DVC."""
