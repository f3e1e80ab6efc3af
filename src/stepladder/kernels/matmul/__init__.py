"""Matrix multiplications by cuBLASLt's fastest algorithm, with GELU or a sum in the epilogue."""
