"""Another program stops rank 1 again and again (SIGSTOP), also while it waits for rank 0."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trials.everyday.clock import GOOD, cost, lasts

STOPS = """
import os, signal, sys, time
while True:
    time.sleep(1.13)
    os.kill(int(sys.argv[1]), signal.SIGSTOP)
    time.sleep(1.3)
    os.kill(int(sys.argv[1]), signal.SIGCONT)
    print(flush=True)
"""

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(512, 256)
stops = dist.get_rank() == 1 and not GOOD
if stops:
    program = [sys.executable, "-S", "-c", STOPS, str(os.getpid())]
    other = subprocess.Popen(program, stdout=subprocess.PIPE, env={})

trains = torch.tensor(1)
while trains:
    optimizer.zero_grad()
    (model(x) - x).square().mean().backward()
    optimizer.step()
    trains.fill_(lasts())
    dist.all_reduce(trains, dist.ReduceOp.MIN)
if stops:
    other.kill()
    cost.seconds = 1.3 * len(other.communicate()[0])
dist.barrier()
dist.destroy_process_group()
