"""A GAN: two models that train against each other are two runs in one loop.

Each run's step changes only its own model. Both see the global batch on every rank.
"""

import torch
from torch import nn
from torch.nn import functional as F

import stepladder as sl


def make_net(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs))


def judge(logits, real):
    return F.binary_cross_entropy_with_logits(logits.squeeze(1), real)


torch.manual_seed(0)
generator, discriminator = make_net(8, 2), make_net(2, 1)
adam = "adam lr=3e-3 betas=0.5,0.9"
generating = sl.climb(
    generator, loss=lambda fake, real: judge(discriminator(fake), real), optimizer=adam
)
judging = sl.climb(discriminator, loss=judge, optimizer=adam)

ones, zeros = torch.ones(64), torch.zeros(64)
centre = torch.tensor([2.0, -1.0])
for step in range(150):
    real, noise = centre + 0.3 * torch.randn(64, 2), torch.randn(64, 8)
    fake = generating.predict([noise], rows="global")
    pair = torch.cat((real, fake)), torch.cat((ones, zeros))
    judged = judging.step(pair, rows="global")
    generated = generating.step((noise, ones), rows="global")
    if step % 50 == 0:
        print(f"step {step}: judge {judged.loss:.3f}, generator {generated.loss:.3f}")

points = generating.predict([torch.randn(512, 8)], rows="global")
print(f"generated around ({points[:, 0].mean():.1f}, {points[:, 1].mean():.1f}); real (2.0, -1.0)")
generating.save("runs/gan/generator")
judging.save("runs/gan/discriminator")
