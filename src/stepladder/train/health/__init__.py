"""Steps that go wrong: NaN and Inf, loss spikes, out of memory, ranks that drift apart."""
