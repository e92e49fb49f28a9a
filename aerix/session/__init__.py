"""Sessions: the log, the project they belong to, snapshots of the working tree."""
