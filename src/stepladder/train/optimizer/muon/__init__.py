"""Muon on every rung: whole matrices from slices, orthogonalised by the ranks that own them."""
