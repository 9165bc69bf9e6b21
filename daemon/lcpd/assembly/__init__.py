"""From settings to the connected parts of a daemon: what is decided first, the two children, the storage, the parts."""
