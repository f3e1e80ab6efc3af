"""Pipeline parallel, consecutive blocks on different ranks."""
