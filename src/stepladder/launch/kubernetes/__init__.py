"""A run as Kubernetes objects, applied and followed by kubectl."""
