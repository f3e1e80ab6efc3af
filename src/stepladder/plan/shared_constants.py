"""Constants shared by training and forecasting, each defined here and nowhere else.

A rung that changed one of them alone would leave the planner forecasting another program.
"""

from __future__ import annotations

MIB = 2**20

# The output layer and its loss run as one from so many classes on. Measured at 50,304 and 128,256
# on an H200, where it wins.
FUSED_VOCABULARY = 32_768

# Tokens whose logits exist at once in the fused head. Each chunk reads and writes a weight-sized
# float32 sum. Measured on an H200 (32,768 tokens, 2,048 wide, 128,256 words, forward and backward):
# 82.7 ms at 4,096, 81.4 at 8,192, 80.8 at 16,384, with 1.7, 2.8 and 4.9 GB; torch's compiled loss
# 85.5 ms with 8.5 GB.
LOGIT_CHUNK = 8192

# Parameters of a block from which it is compiled by itself; on one GPU smaller blocks are compiled
# with the whole module around them.
LARGE_BLOCK = 20_000_000

# Gradients that DDP reduces together: torch's default, which we leave as it is.
DDP_BUCKET_BYTES = 25 * MIB

# Parameters sent in one collective: broadcast at the start, and gathered after ZeRO 1's update.
PARAMETER_BUCKET_BYTES = 64 * MIB

# Blocks whose parameters ZeRO 2 and 3 gather ahead of the one that computes, where the plan names
# no other number.
PREFETCHED_BLOCKS = 1

# Matrices that a rank orthogonalises together under muon, in the type it computes in: the next ones
# arrive and the last ones leave meanwhile.
MUON_ROUND_BYTES = 256 * MIB

# Elements whose 8-bit moments share a scale.
MOMENT_GROUP = 64

# By the bytes of a parameter with its weight and gradient in 16 bits: what is kept of its master
# beside the weight, and of each moment.
MASTER_STATE = {16: (4, 4), 14: (2, 4), 10: (2, 2), 7: (1, 1 + 4 / MOMENT_GROUP)}
