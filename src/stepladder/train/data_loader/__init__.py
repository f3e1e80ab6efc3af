"""A torch DataLoader whose batches several ranks share."""
