"""Training problems drawn from a grammar: module, loss, data, optimizer. Nothing of stepladder."""
