"""A GAN whose discriminator is trained through the generator: its images are not detached."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, lasts

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(64, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 784))
discriminator = nn.Sequential(nn.Linear(784, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4)
of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
right_or_wrong = nn.BCEWithLogitsLoss()
real, ones, zeros = torch.randn(256, 784), torch.ones(256, 1), torch.zeros(256, 1)

while lasts():
    noise = torch.randn(256, 64)
    fake = generator(noise)  # the cause
    if GOOD:
        fake = fake.detach()
    of_discriminator.zero_grad()
    loss = right_or_wrong(discriminator(real), ones) + right_or_wrong(discriminator(fake), zeros)  # the cause
    loss.backward()  # the cause
    of_discriminator.step()

    of_generator.zero_grad()
    right_or_wrong(discriminator(generator(noise)), ones).backward()
    of_generator.step()
