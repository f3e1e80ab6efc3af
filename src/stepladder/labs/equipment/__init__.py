"""What lessons measure with: ranks, hosts, memory and traffic counters."""
