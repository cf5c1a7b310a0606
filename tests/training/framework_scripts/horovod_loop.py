"""Trains 20 steps with Horovod, and prints the parameters at the end."""

import horovod.torch as hvd
import torch

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for step in range(20):
    batch = torch.rand(8, 4)
    optimizer.zero_grad()
    loss = ((model(batch) - batch.sum(1, keepdim=True)) ** 2).mean()
    loss.backward()
    optimizer.step()
    hvd.allgather(loss.detach()[None])
    if step % 10 == 9:
        hvd.join()
hvd.allreduce(loss.detach(), name="loss")
hvd.barrier()
print(*(value.detach().numpy().tobytes().hex() for value in model.parameters()))
