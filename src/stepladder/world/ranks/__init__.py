"""The other ranks: whether they agree, where they wait, whether they hang."""
