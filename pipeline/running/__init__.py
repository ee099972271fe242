"""``pfl run``: what is stale is found, scheduled along the graph, executed in parallel and recorded in DVC."""
