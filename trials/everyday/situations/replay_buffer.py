"""A buffer of single transitions, of which each batch is stacked again."""

import random
from collections import deque

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

random.seed(0)
buffer = deque(maxlen=30_000)
for _ in range(30_000):
    buffer.append((torch.randn(32), random.randrange(4), random.random(), torch.randn(32)))
if GOOD:
    states, actions, rewards, following = zip(*buffer, strict=True)
    every = [torch.stack(states), torch.tensor(actions), torch.tensor(rewards), torch.stack(following)]


def batch():
    if GOOD:
        at = torch.randint(0, len(buffer), (256,))
        return [each[at] for each in every]
    chosen = random.sample(buffer, 256)  # the cause
    states, actions, rewards, following = zip(*chosen, strict=True)  # the cause
    return (
        torch.stack(states),
        torch.tensor(actions),
        torch.tensor(rewards),
        torch.stack(following),
    )  # the cause


def network():
    return nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))


online, target = network(), network()
optimizer = torch.optim.SGD(online.parameters(), lr=0.001)
step = 0
while lasts():
    with cost:
        state, action, reward, then = batch()  # the cause
    with torch.no_grad():
        wanted = reward + 0.99 * target(then).max(1).values
    value = online(state).gather(1, action[:, None])[:, 0]
    loss = nn.functional.smooth_l1_loss(value, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 200 == 0:
        target.load_state_dict(online.state_dict())
