"""The reference of a proof: plain torch, which shares no code with what it judges."""
