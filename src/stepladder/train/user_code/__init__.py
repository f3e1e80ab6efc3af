"""The user's own module, data and loss, by where they are in their code."""
