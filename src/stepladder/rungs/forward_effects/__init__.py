"""What a module's forward pass writes besides its result: buffers, counters, its own inputs."""
