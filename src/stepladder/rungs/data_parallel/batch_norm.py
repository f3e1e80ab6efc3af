"""Rung: batch statistics over all ranks that share a batch, as one device would compute them."""

from torch import nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
