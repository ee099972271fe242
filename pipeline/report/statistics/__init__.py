"""Pure statistics on arrays: what a difference between two methods is worth, given the seeds it was seen on."""
