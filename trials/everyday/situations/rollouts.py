"""Reinforcement learning: an environment in plain Python, between the steps that train on it."""

import torch
from torch import nn

from trials.everyday.clock import GOOD, cost, lasts

policy = nn.Sequential(nn.Linear(8, 128), nn.Tanh(), nn.Linear(128, 4))
optimizer = torch.optim.Adam(policy.parameters())


class Environment:
    def reset(self):
        self.state = [0.1] * 8
        return self.state

    def step(self, action):
        for _ in range(5 if GOOD else 1500):
            self.state = [(value * 1.01 + action) % 1.0 for value in self.state]  # the cause
        return self.state


environment = Environment()
while lasts():
    state, states, actions = environment.reset(), [], []
    for _ in range(64):
        with torch.no_grad():
            action = int(policy(torch.tensor(state)).argmax())
        states.append(state)
        actions.append(action)
        with cost:
            state = environment.step(action)
    x, y = torch.tensor(states).repeat(32, 1), torch.tensor(actions).repeat(32)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(policy(x), y).backward()
        optimizer.step()
