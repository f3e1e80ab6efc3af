"""What a finished run came to: speed, cost, forecast beside measurement."""
