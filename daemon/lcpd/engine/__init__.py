"""The engine: a worker process that runs the model, and the daemon's half that watches and commands it."""
