"""The lab 'ring': one loop for both halves, with plain sends and receives, and no `exchange`."""

import torch
import torch.distributed as dist


class Ring:
    def __init__(self, tensor):
        self.me, self.ways = dist.get_rank(), dist.get_world_size()
        self.part = tensor.chunk(self.ways)
        self.spare = torch.empty_like(self.part[0])

    def hop(self, leaving, arriving, keep):
        request = dist.isend(self.part[leaving].clone(), (self.me + 1) % self.ways)
        dist.recv(self.spare, (self.me - 1) % self.ways)
        request.wait()
        if keep:
            self.part[arriving][:] = self.spare
        else:
            self.part[arriving][:] += self.spare


def ring_all_reduce(tensor, note=lambda: None):
    ring = Ring(tensor)
    leaving = ring.me
    for hop in range(2 * (ring.ways - 1)):
        arriving = (leaving - 1) % ring.ways
        ring.hop(leaving, arriving, keep=hop >= ring.ways - 1)
        leaving = arriving
        note()
