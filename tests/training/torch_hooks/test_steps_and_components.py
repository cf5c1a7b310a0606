"""Steps, evaluation and components of unmodified scripts in one process, with and without the hooks."""

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest
from stepscope.training.layout import (
    COMPONENTS,
    DENORMALS,
    DOUBLES,
    FIRST_OPERATORS,
    FORWARD_UNUSED,
    FORWARD_USED,
    GROWTH,
    HALVES,
    LEAVES,
    ONE_SAMPLE,
    OPERATORS,
    PADDING,
    PROFILED,
    TENSORS,
    UNTRAINED,
)

from tests.support.pytorch import needs_torch
from tests.support.torch_script import Rank, Trained, train

pytestmark = needs_torch


LOOPS = {
    "accumulation": (
        """
        for i, (x, y) in enumerate(DataLoader(data, batch_size=8)):
            (loss_of(model(x), y) / 3).backward()
            if i % 3 == 2: optimizer.step(); optimizer.zero_grad()
        """,
        {"train": 4},
    ),
    "batches fetched together": (
        """
        batches = iter(DataLoader(data, batch_size=8))
        for step in range(4):
            for x, y in [next(batches) for _ in range(3)]: loss_of(model(x), y).backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        {"train": 4},
    ),
    "a batch fetched ahead": (
        """
        batches = iter(DataLoader(data, batch_size=8))
        following = next(batches)
        while following is not None:
            (x, y), following = following, next(batches, None)
            loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        """,
        {"train": 12},
    ),
    "three loaders side by side": (
        """
        loaders = [DataLoader(data, batch_size=8) for _ in range(3)]
        for triple in zip(*loaders):
            sum(loss_of(model(x), y) for x, y in triple).backward(); optimizer.step(); optimizer.zero_grad()
        """,
        {"train": 12},
    ),
    "two loaders side by side, and two batches of one, evaluated": (
        """
        for (x, _), (y, _) in zip(DataLoader(data, batch_size=8), DataLoader(data, batch_size=8)):
            (model(x) * model(y)).sum().backward(); optimizer.step(); optimizer.zero_grad()
        with torch.no_grad():
            for (x, _), (y, _) in zip(DataLoader(data, batch_size=16), DataLoader(data, batch_size=16)):
                model(x); model(y)
        for (x, _), (y, _) in zip(DataLoader(data, batch_size=16), DataLoader(data, batch_size=16)):
            loss_of(model(x), model(y).softmax(1))
        batches = iter(DataLoader(data, batch_size=16))
        for (x, _), (y, _) in zip(batches, batches):
            with torch.no_grad(): model(torch.cat((x, y)))
        """,
        {"train": 12, "eval": 6 + 6 + 3},
    ),
    "evaluation that leaves its loader early, with and without gradients": (
        """
        for evaluates in (torch.enable_grad, torch.no_grad):
            for x, y in DataLoader(data, batch_size=8):
                loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
            for i, (x, y) in enumerate(DataLoader(data, batch_size=16)):
                if i == 4: break
                with evaluates(): model(x)
        """,
        {"train": 24, "eval": 8},
    ),
    "evaluation of a few batches, at the end": (
        """
        batches = iter(DataLoader(data, batch_size=16))
        for _ in range(3):
            x, y = next(batches)
            with torch.no_grad(): model(x)
        """,
        {"eval": 3},
    ),
    "evaluation by functions": (
        """
        for x, y in DataLoader(data, batch_size=8):
            loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        with torch.no_grad():
            for x, y in DataLoader(data, batch_size=16): x @ model.inner[0].weight.T
        """,
        {"train": 12, "eval": 6},
    ),
    "evaluation with gradients": (
        """
        for x, y in DataLoader(data, batch_size=8):
            loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        for x, y in DataLoader(data, batch_size=16): loss_of(model(x), y)
        """,
        {"train": 12, "eval": 6},
    ),
    "batches that are only read, first and in between": (
        """
        for epoch in range(2):
            for x, y in list(DataLoader(data, batch_size=8)):
                loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        """,
        {"train": 24},
    ),
    "evaluation only": (
        """
        for x, y in DataLoader(data, batch_size=16):
            with torch.inference_mode(): model(x)
        """,
        {"eval": 6},
    ),
    "parameters that the script updates itself, after three passes each": (
        """
        for epoch in range(2):
            for i, (x, y) in enumerate(DataLoader(data, batch_size=8)):
                loss_of(model(x), y).backward()
                if i % 3 == 2:
                    for p in model.parameters(): p.data.sub_(p.grad, alpha=0.01); p.grad.zero_()
            for x, y in DataLoader(data, batch_size=16):
                with torch.no_grad(): model(x)
        """,
        {"train": 8, "eval": 12},
    ),
    "parameters that the script updates itself, without a loader": (
        """
        for i in range(13):
            x, y = data[i * 4 : i * 4 + 4]
            loss_of(model(x), y).backward()
            for p in model.parameters(): p.data.sub_(p.grad, alpha=0.01); p.grad = None
        """,
        {"train": 12},  # nothing says when the last one ends
    ),
    "gradients that the script asks for, and updates by hand": (
        """
        for epoch in range(2):
            for x, y in DataLoader(data, batch_size=8):
                gradients = torch.autograd.grad(loss_of(model(x), y), model.parameters())
                with torch.no_grad():
                    for p, gradient in zip(model.parameters(), gradients): p -= 0.01 * gradient
            for x, y in DataLoader(data, batch_size=16):
                with torch.no_grad(): model(x)
        for i in range(12):
            x, y = data[i * 8 : i * 8 + 8]
            gradients = torch.autograd.grad(outputs=loss_of(model(x), y), inputs=[*model.parameters()])
            for p, gradient in zip(model.parameters(), gradients): p.data.sub_(gradient, alpha=0.01)
        """,
        {"train": 35, "eval": 12},  # nothing says when the last one ends
    ),
    "gradients that the script asks for, without an update": (
        """
        for x, y in DataLoader(data, batch_size=8):
            torch.autograd.grad(loss_of(model(x), y), [*model.parameters()])
            torch.autograd.grad(model(x.requires_grad_()).sum(), x)
        """,
        {"eval": 12},
    ),
    "parameters that are arguments of a function": (
        """
        from torch.func import functional_call, grad
        values = {name: each.detach() for name, each in model.named_parameters()}
        def loss_with(values, x, y): return loss_of(functional_call(model, values, (x,)), y)
        for x, y in DataLoader(data, batch_size=8):
            gradients = grad(loss_with)(values, x, y)
            values = {name: values[name] - 0.01 * gradients[name] for name in values}
        for x, y in DataLoader(data, batch_size=8):
            grad(loss_with)({name: each.clone() for name, each in values.items()}, x, y)
        model.load_state_dict(values)
        """,
        {"train": 12, "eval": 12},
    ),
    "steps of a copy, through which the step of the model goes back": (
        """
        from torch.func import functional_call
        for x, y in DataLoader(data, batch_size=8):
            fast = dict(model.named_parameters())
            loss = loss_of(functional_call(model, fast, (x,)), y)
            gradients = torch.autograd.grad(loss, fast.values(), create_graph=True)
            fast = {name: fast[name] - 0.01 * each for name, each in zip(fast, gradients)}
            loss_of(functional_call(model, fast, (x,)), y).backward(); optimizer.step(); optimizer.zero_grad()
        """,
        {"train": 12},
    ),
    "gradients that are looked at first, and discarded": (
        """
        for i in range(3):
            loss_of(model(data[:8][0]), data[:8][1]).backward(); model.zero_grad()
        for i, (x, y) in enumerate(DataLoader(data, batch_size=8)):
            if i == 5: break
            loss_of(model(x), y).backward(); model.zero_grad()
        for x, y in DataLoader(data, batch_size=8):
            loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        """,
        {"train": 12},
    ),
    "a loader of another class, which starts the iterators of PyTorch": (
        """
        from torch.utils.data.dataloader import _SingleProcessDataLoaderIter as Started
        class Loader:
            def __init__(self, size): self.loader = DataLoader(data, batch_size=size)
            def __iter__(self): yield from Started(self.loader)
        for x, y in Loader(8):
            loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        for x, y in Loader(16):
            with torch.no_grad(): model(x)
        """,
        {"train": 12, "eval": 6},
    ),
    "two optimizers": (
        """
        other = Net()
        second = torch.optim.SGD(other.parameters(), lr=0.01)
        for x, y in DataLoader(data, batch_size=8):
            with torch.no_grad(): other(x)
            loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
            loss_of(other(x), y).backward(); second.step(); second.zero_grad()
        """,
        {"train": 12},
    ),
    "an optimizer that another one replaces": (
        """
        for x, y in DataLoader(data, batch_size=8):
            loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x, y in DataLoader(data, batch_size=8):
            loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        """,
        {"train": 24},
    ),
    "an optimizer that is kept, while another one takes over": (
        """
        first = optimizer
        for optimizer in (first, torch.optim.SGD(model.parameters(), lr=0.01)):
            for x, y in DataLoader(data, batch_size=8):
                loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        """,
        {"train": 24},
    ),
    "models one after the other, all kept, with one batch per epoch": (
        """
        kept = []
        for fold in range(3):
            model = Net(); optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            kept.append((model, optimizer))
            for epoch in range(3):
                for x, y in DataLoader(data, batch_size=96):
                    loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
                with torch.no_grad():
                    for x, y in DataLoader(data, batch_size=96): model(x)
        """,
        {"train": 9, "eval": 9},
    ),
    "a generator, whose optimizer is the first, and a critic that makes more steps": (
        """
        critic, generator = Net(), nn.Linear(4, 16)
        of_critic, of_generator = (torch.optim.Adam(each.parameters()) for each in (critic, generator))
        for i, (x, y) in enumerate(DataLoader(data, batch_size=8)):
            made = generator(torch.ones(8, 4))
            if i % 4 == 0: critic(made).mean().backward(); of_generator.step(); of_critic.zero_grad()
            (critic(x) - critic(made.detach())).mean().backward(); of_critic.step(); of_critic.zero_grad()
        """,
        {"train": 12},
    ),
    "more steps of one optimizer than of the other": (
        """
        other = Net()
        first = torch.optim.SGD(other.parameters(), lr=0.01)
        for i, (x, y) in enumerate(DataLoader(data, batch_size=8)):
            loss_of(other(x), y).backward(); first.step(); first.zero_grad()
            if i % 4 == 3: loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        """,
        {"train": 12},
    ),
    "an optimizer per parameter, in the backward pass": (
        """
        each = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}
        def step(p): each[p].step(); each[p].zero_grad()
        since_2_1 = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")
        hooks = [p.register_post_accumulate_grad_hook(step) for p in each if since_2_1]
        for x, y in DataLoader(data, batch_size=8):
            loss_of(model(x), y).backward()
            if not hooks: any(map(step, each))
        for hook in hooks: hook.remove()  # torch lets no collector see them
        """,
        {"train": 12},
    ),
    "a closure": (
        """
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        for x, y in DataLoader(data, batch_size=8):
            def closure():
                optimizer.zero_grad(); loss = loss_of(model(x), y); loss.backward(); return loss
            optimizer.step(closure)
        """,
        {"train": 12},
    ),
    "a closure that takes its time": (
        """
        for x, y in DataLoader(data, batch_size=8):
            def closure():
                optimizer.zero_grad()
                loss = loss_of(model(x), y)
                time.sleep(0.015)
                loss.backward()
                return loss
            optimizer.step(closure=closure)
        """,
        {"train": 12},
    ),
    "an optimizer that calls the step of its class": (
        """
        other = torch.optim.Adam(Net().parameters())  # PyTorch hooks `Adam.step` when there is a plain one
        class Decayed(torch.optim.Adam):
            def step(self, closure=None):
                loss = super().step(closure)
                time.sleep(0.001)
                return loss
        class Twice(Decayed):
            def step(self, closure=None): return super().step(closure)
        optimizer = Twice(model.parameters())
        for i, (x, y) in enumerate(DataLoader(data, batch_size=8)):
            time.sleep(0.01)  # the inner step ends when the outer one nearly does, as in most trainings
            loss_of(model(x), y).backward()
            try:
                if i == 5: optimizer.step(lambda: 1 / 0)
            except ZeroDivisionError: pass
            optimizer.step(); optimizer.zero_grad()
        """,
        {"train": 12},
    ),
    "an optimizer around others, which make several steps in its own": (
        """
        class Lookahead(torch.optim.Optimizer):
            def __init__(self, base, steps):
                self.base, self.steps = base, steps
                super().__init__(base.param_groups, {})
            def step(self, closure=None):
                for _ in range(self.steps): self.base.step()
        for i, (x, y) in enumerate(DataLoader(data, batch_size=8)):
            if i % 4 == 0: optimizer = Lookahead(torch.optim.Adam(model.parameters()), 1 + i)
            loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        """,
        {"train": 12},
    ),
    "an optimizer around another one that is no optimizer, or whose step is not hooked": (
        """
        class Clipped:
            def __init__(self, base): self.base = base
            def step(self): return self.base.step()
        class Accelerated(torch.optim.Optimizer):
            def __init__(self, base): self.base, self.param_groups = base, base.param_groups
            def step(self, closure=None): return self.base.step(closure)
        for kind in (Clipped, Accelerated):
            optimizer = None
            optimizer = kind(torch.optim.SGD(model.parameters(), lr=0.01))
            for x, y in DataLoader(data, batch_size=16):
                loss_of(model(x), y).backward(); optimizer.step(); model.zero_grad()
        """,
        {"train": 12},
    ),
    "two passes in one step, with a closure": (
        """
        class SAM(torch.optim.Optimizer):
            def __init__(self, params, base, **settings):
                super().__init__(params, settings)
                self.base_optimizer = base(self.param_groups, **settings)
            @torch.no_grad()
            def step(self, closure):
                closure = torch.enable_grad()(closure)
                closure()
                self.base_optimizer.step()
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.01)
        for x, y in DataLoader(data, batch_size=8):
            def closure():
                optimizer.zero_grad(); loss = loss_of(model(x), y); loss.backward(); return loss
            closure(); optimizer.step(closure)
        """,
        {"train": 12},
    ),
    "saving with safetensors": (
        """
        import safetensors.torch
        from safetensors.torch import save_model
        for x, y in DataLoader(data, batch_size=8):
            loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
            safetensors.torch.save_file(model.state_dict(), "model.safetensors")
            save_model(model, "model.safetensors")
        """,
        {"train": 12},
    ),
    "steps that the scaler skips": (
        """
        if hasattr(torch.amp, "GradScaler"): scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        else: scaler = torch.cuda.amp.GradScaler(enabled=False)  # before PyTorch 2.3 it needs a GPU to skip
        for i, (x, y) in enumerate(DataLoader(data, batch_size=8)):
            loss = loss_of(model(x), y) * (float("inf") if i % 2 == 0 else 1.0)
            scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
        """,
        {"train": 12},
    ),
    "attempts that end with an error, as to find a batch size": (
        """
        class Full(nn.Module):
            def forward(self, x):
                if len(x) > 8: raise RuntimeError("out of memory")
                return model(x)
        full = Full()
        for size in (32, 16, 8):
            try:
                batches = iter(DataLoader(data, batch_size=size))
                following = next(batches)
                while following is not None:
                    (x, y), following = following, next(batches, None)
                    loss_of(full(x), y).backward(); optimizer.step(); optimizer.zero_grad()
            except RuntimeError: pass
        """,
        {"train": 12},
    ),
    "errors that the loop survives": (
        """
        for i, (x, y) in enumerate(DataLoader(data, batch_size=8)):
            try:
                if i == 3: model(x[:, :3])
                loss_of(model(x), y).backward()
                if i == 5: optimizer.step(lambda: 1 / 0)
                optimizer.step(); optimizer.zero_grad()
            except (RuntimeError, ZeroDivisionError):
                optimizer.zero_grad()
        """,
        {"train": 10},
    ),
    "early stop": (
        """
        for i, (x, y) in enumerate(DataLoader(data, batch_size=8, num_workers=2)):
            if i == 5: break
            loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        """,
        {"train": 5},
    ),
    "activation checkpointing": (
        """
        from torch.utils.checkpoint import checkpoint
        for reentrant in (True, False):
            for x, y in DataLoader(data, batch_size=8):
                out = checkpoint(model, x.requires_grad_(), use_reentrant=reentrant)
                loss_of(out, y).backward(); optimizer.step(); optimizer.zero_grad()
        """,
        {"train": 24},
    ),
    "no loader": (
        """
        for i in range(12):
            x, y = data[i * 8 : i * 8 + 8]
            loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        """,
        {"train": 12},
    ),
    "evaluation of batches that are fetched ahead": (
        """
        for epoch in range(2):
            for x, y in DataLoader(data, batch_size=8):
                loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
            model.eval()
            batches = iter(DataLoader(data, batch_size=16))
            following = next(batches)
            while following is not None:
                (x, y), following = following, next(batches, None)
                with torch.no_grad(): model(x)
            model.train()
        """,
        {"train": 24, "eval": 12},
    ),
    "a pass without gradients in each step, on batches that are fetched ahead": (
        """
        for epoch in range(2):
            batches = iter(DataLoader(data, batch_size=8))
            following = next(batches)
            while following is not None:
                (x, y), following = following, next(batches, None)
                model.eval()
                with torch.no_grad(): model(x)  # generates what the step trains on
                model.train()
                loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        """,
        {"train": 24},
    ),
    "evaluation only, of batches that are fetched ahead": (
        """
        model.eval()
        batches = iter(DataLoader(data, batch_size=16))
        following = next(batches)
        while following is not None:
            (x, y), following = following, next(batches, None)
            with torch.no_grad(): model(x)
        """,
        {"eval": 6},
    ),
    "batches that are fetched two ahead, of loaders in a chain": (
        """
        import collections, itertools
        def ahead(*loaders):
            batches, queue = itertools.chain(*loaders), collections.deque()
            def fill(more): queue.extend(itertools.islice(batches, more))
            fill(2)
            while queue:
                yield queue.popleft()
                fill(1)
        for epoch in range(2):
            for x, y in ahead(DataLoader(data, batch_size=16), DataLoader(data, batch_size=16)):
                loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
            for x, y in ahead(DataLoader(data, batch_size=24), DataLoader(data, batch_size=24)):
                with torch.no_grad(): model(x)
        """,
        {"train": 24, "eval": 16},
    ),
    "evaluation without a loader": (
        """
        target = torch.nn.Linear(16, 2).eval()
        model.eval()
        with torch.no_grad(): model(data[0][0])  # before training, when no optimizer is known
        model.train()
        for i in range(12):
            with torch.no_grad(): target(data[0][0])  # no evaluation: other parameters than those trained
            x, y = data[i * 8 : i * 8 + 8]
            loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
            if i % 5 == 4:
                model.eval()
                with torch.no_grad(): losses = [model(x) for _ in range(3)]
                model.train()
        """,
        {"train": 12, "eval": 2},
    ),
    "evaluation without a loader, of models that are all kept": (
        """
        kept, (x, y) = [], data[:]
        for fold in range(3):
            model = Net(); optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            kept.append((model, optimizer))
            for epoch in range(3):
                loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
                model.eval()
                with torch.no_grad(): model(x)
                model.train()
        """,
        {"train": 9, "eval": 9},
    ),
    "evaluation without a loader, at the end": (
        """
        for i in range(12):
            x, y = data[i * 8 : i * 8 + 8]
            loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        model.eval()
        with torch.no_grad(): losses = [model(x) for _ in range(3)]
        """,
        {"train": 12, "eval": 1},
    ),
    "evaluation without a loader, in training mode": (
        """
        for i in range(12):
            x, y = data[i * 8 : i * 8 + 8]
            with torch.no_grad(): model(x)  # no evaluation: a single pass, for this step
            loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
            if i % 5 == 4:
                with torch.no_grad(): losses = [model(x) for _ in range(3)]
                loss_of(model(x), y).backward()
        """,
        {"train": 12, "eval": 2},
    ),
    "evaluation without a loader, of a model whose first parameters are frozen": (
        """
        model.inner[0].requires_grad_(False)  # as adapters (LoRA) do
        optimizer = torch.optim.SGD(model.inner[2].parameters(), lr=0.01)
        for i in range(12):
            x, y = data[i * 8 : i * 8 + 8]
            loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
            if i % 5 == 4:
                model.eval()
                with torch.no_grad(): model(x)
                model.train()
        """,
        {"train": 12, "eval": 2},
    ),
    "classes that have their own idea of parameters": (
        """
        class Odd(Net):
            def parameters(self, which): return super().parameters()
        class Own(torch.optim.Optimizer):
            def step(self):
                for each in self.param_groups[0]["params"]: each.data.sub_(each.grad, alpha=0.01)
        odd = Odd()
        optimizer = Own(odd.parameters("all"), {"foreach": False})
        optimizer.param_groups.append({"foreach": False})
        for i in range(24):
            x, y = data[i * 4 : i * 4 + 4]
            loss_of(odd(x), y).backward(); optimizer.step()
            for parameter in odd.parameters("all"): parameter.grad = None
            odd.eval()
            with torch.no_grad(): odd(x)
            odd.train()
        """,
        {"train": 24},
    ),
    "no forward pass of a module": (
        """
        for x, y in DataLoader(data, batch_size=8):
            loss_of(x @ model.inner[0].weight.T @ torch.ones(32, 4), y).backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        {"train": 12},
    ),
}


EACH = """
def loop(name):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    {body}
    print(name, sum(p.double().sum().item() for p in model.parameters()))
import gc, stepscope
if not gc.get_freeze_count(): gc.freeze()  # the collection below leaves out the objects of PyTorch
stepscope.start(run={name!r})
loop({name!r})
stepscope.finish()
gc.collect()  # optimizers that the loop has left, in cycles
"""


# At the edge: the package itself only writes a file there.
SAFETENSORS = """
import time
def save_file(tensors, filename, metadata=None): time.sleep(0.02)
def save_model(model, filename, metadata=None): save_file(dict(model.state_dict()), filename, metadata)
"""


# Which of the two ways hooks go depends on how long steps last, but here: all fall into one bucket, or none.
QUICK = """
from stepscope.training import recorder
from stepscope.training.automatic import automatic
usual, recorder.STEP_BOUNDS = recorder.STEP_BOUNDS, (14400.0,)
"""
CAREFUL = "automatic.unusual.add('a test')"
AS_USUAL = """
print("as usual", file=sys.stderr, flush=True)
recorder.STEP_BOUNDS = usual
automatic.unusual.discard("a test")
"""


CAREFULLY = ", carefully"


def train_all(folder: Path, stepscope: str, *more: str, status: int = 0) -> Trained:
    """Runs all loops and more scripts, one after the other in one process: each loop is a run."""
    package = folder / "safetensors"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "torch.py").write_text(SAFETENSORS)
    return train(QUICK, *all_loops(), *more, folder=folder, status=status, STEPSCOPE=stepscope)


def all_loops(suffix: str = "") -> list[str]:
    return [each(f"{name}{suffix}", body) for name, (body, _) in LOOPS.items()]


def each(name: str, body: str) -> str:
    """Returns the script of a loop that is a run of its own."""
    return EACH.format(name=name, body=textwrap.indent(textwrap.dedent(body), "    "))


def of(trained: Trained, name: str) -> Rank:
    (rank,) = trained.of(name)
    return rank


@pytest.mark.parametrize("name", LOOPS)
def test_loops_of_all_kinds_have_their_steps(timed: Trained, name: str) -> None:
    for way in ("", CAREFULLY):
        assert of(timed, f"{name}{way}").totals.steps == LOOPS[name][1]


def test_all_loops_train_alike_without_hooks(timed: Trained, tmp_path: Path) -> None:
    assert timed.errors.startswith("as usual\n"), "nothing before"
    bare = train_all(tmp_path, "off")
    assert timed.output.replace(CAREFULLY, "").startswith(2 * bare.output)
    assert bare.ranks == []


def test_what_a_closure_does_is_not_the_optimizer_s_time(timed: Trained) -> None:
    rank = of(timed, "a closure that takes its time")
    in_parts = sum(rank.seconds(name) for name in ("data_wait", "forward", "backward", "optimizer"))
    assert rank.duration() - in_parts > 0.0149


def test_saving_with_safetensors_is_a_checkpoint_and_counts_once(timed: Trained) -> None:
    for step in of(timed, "saving with safetensors").steps[1:]:  # they save after the optimizer's step
        assert 0.04 <= step.components[COMPONENTS.index("checkpoint")] <= step.duration


# -- loops that sleep in known places ---------------------------------------------------------------------

PLAIN = """
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 12
    def __getitem__(self, i): time.sleep(0.01); return data[i]
class Wait(torch.autograd.Function):
    @staticmethod
    def forward(context, x): time.sleep(0.02); return x
    @staticmethod
    def backward(context, gradient): time.sleep(0.03); return gradient
class Model(nn.Module):
    def __init__(self): super().__init__(); self.inner = Net()
    def forward(self, x): return Wait.apply(self.inner(x))
model = Model()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    for x, y in DataLoader(Slow(), batch_size=2):
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        time.sleep(0.015)
        loss.backward()
        optimizer.step()
    model.eval()
    for x, y in DataLoader(Slow(), batch_size=4):
        with torch.no_grad(): model(x)
    torch.save(model.state_dict(), sys.argv[0] + ".pt")
    time.sleep(0.05)
"""
USUAL = """
from stepscope.training.automatic import AutomaticSteps, automatic
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 30
    def __getitem__(self, i): time.sleep(0.005); return data[i]
class Wait(torch.autograd.Function):
    @staticmethod
    def forward(context, x): time.sleep(0.005); return x
    @staticmethod
    def backward(context, gradient): time.sleep(0.005); return gradient
closely = []
ended = AutomaticSteps.step_ended
def step_ended(self, place): closely.append(place); ended(self, place)
AutomaticSteps.step_ended = step_ended
class Model(Net):
    def forward(self, x): return Wait.apply(Net.forward(self, x))
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for i, (x, y) in enumerate(DataLoader(Slow())):
    loss_of(model(x), y).backward()
    optimizer.step(); optimizer.zero_grad()
    (automatic.unusual.add if i % 4 == 0 else automatic.unusual.discard)("test")
stepscope.gauge("closely", len(closely))
"""
LATE_WORKERS = """
class Slow(torch.utils.data.Dataset):
    def __init__(self): self.begun = False
    def __len__(self): return 6
    def __getitem__(self, i):
        if not self.begun: self.begun = True; time.sleep(0.3)
        return data[i]
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for x, y in DataLoader(Slow(), batch_size=2, num_workers=1):
        loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
"""
GROWING = """
cell, head = torch.nn.Linear(4, 4).double(), torch.nn.Linear(4, 1).double()
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
state = torch.ones(1, 4).double()
profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
for i in range(90):
    if i == 60: profiler.start()  # the third look is at the 80th step
    state = cell(state)
    head(state).sum().backward(retain_graph=True); optimizer.step(); optimizer.zero_grad()
profiler.stop()
"""
OF_ROWS = """
for _ in range(21):
    out = model.inner[0](data.tensors[0][:8])
    torch.stack([out[i] * 2 for i in range(8)]).sum().backward()
    optimizer.step(); optimizer.zero_grad()
"""
ACCUMULATES = """
for _ in range(21):
    for row in data.tensors[0][:8]: model.inner[0](row[None]).sum().backward()
    optimizer.step(); optimizer.zero_grad()
"""
LATE = """
from torch.utils.checkpoint import checkpoint
class Late(Net):
    def forward(self, module): time.sleep(0.005); return Net.forward(self, module)
late = Late()
optimizer = torch.optim.SGD([*model.parameters(), *late.parameters()], lr=0.01)
for i, (x, y) in enumerate(DataLoader(data, batch_size=4)):
    if i == 16: late.compile(backend="eager")
    if i < 8: out = model(x)
    elif i < 12: out = late(module=x)
    elif i < 16: out = checkpoint(late, x, use_reentrant=False)
    else: out = late(x)
    loss_of(out, y).backward(); optimizer.step(); optimizer.zero_grad()
"""


PROFILES_A_PART = """
import contextlib, cProfile
from stepscope.training import tools
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = data[:8]
for part in (cProfile.Profile(), contextlib.nullcontext()):
    tools.note()  # as between two steps, once in a second
    with part: out = model(x)
    print("on in the pass:", *tools.noted, file=sys.stderr)
    loss_of(out, y).backward(); optimizer.step(); optimizer.zero_grad()
"""


FOLD = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
globals().setdefault("optimizers", []).append(optimizer)
for x, y in DataLoader(data, batch_size=24):
    loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
"""


MEASURES = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def ahead(loader):
    batches = iter(loader)
    following = next(batches)
    while following is not None:
        batch, following = following, next(batches, None)
        yield batch
for loop, evaluates in ((iter, torch.no_grad), (ahead, torch.no_grad), (iter, torch.enable_grad)):
    for x, y in DataLoader(data, batch_size=24):
        loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
    for x, y in loop(DataLoader(data, batch_size=32)):
        with evaluates(): model(x)
    time.sleep(0.02)
    torch.save(model.state_dict(), sys.argv[0] + ".pt")
    time.sleep(0.02)
loss_of(model(x), y).backward(); optimizer.step()
"""


ERROR = """
for i, (x, y) in enumerate(DataLoader(data, batch_size=8)):
    loss = loss_of(model(x if i < 5 else x[:, :3]), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """One process for all: the loops of all kinds in both ways, and those that sleep, or that hooks look at.

    At last a loop changes the hooks, and an error ends it.
    """
    loops = {**ODD_LOOPS, **{name: script + KEPT for name, script in LOOKED_AT.items()}}
    loops |= {"of rows": OF_ROWS, "growing": GROWING, "plain": PLAIN, "late": LATE, "workers": LATE_WORKERS}
    loops |= {"fold 1": FOLD, "fold 2": FOLD, "accumulates": ACCUMULATES, "usual": USUAL}
    loops |= {"measures": MEASURES, "profiles a part": PROFILES_A_PART}
    loops["error"] = ERROR
    folder = tmp_path_factory.mktemp("timed")
    package = folder / "torchdata" / "stateful_dataloader"
    package.mkdir(parents=True)
    (package / "stateful_dataloader.py").write_text(STATEFUL)
    more = CAREFUL, *all_loops(CAREFULLY), AS_USUAL, *map(each, loops, loops.values())
    return train_all(folder, "on", *more, status=1)


def test_a_plain_loop_with_evaluation_has_its_steps_and_all_their_components(timed: Trained) -> None:
    rank = of(timed, "plain")
    assert rank.totals.steps == {"train": 12, "eval": 6}
    # Each has what sleeps in it, and nothing counts twice: the rest of the step is the script's own pause.
    data_wait, forward, backward = (rank.seconds(name) for name in ("data_wait", "forward", "backward"))
    assert (data_wait > 0.019, forward > 0.019, backward > 0.029) == (True, True, True)
    assert rank.duration() - data_wait - forward - backward > 0.0149
    fetched = rank.seconds("data_wait", "eval", skip=0)
    assert fetched > 0.039
    assert rank.duration("eval", skip=0) - fetched > 0.019
    assert rank.totals.component_seconds["checkpoint"] > 0
    waits = {loader.phase: (sum(loader.wait_counts), loader.batch_size) for loader in rank.totals.loaders}
    assert waits == {"train": (12, 2), "eval": (6, 4)}


def test_what_follows_the_last_batch_of_an_evaluation_is_of_it_but_for_the_checkpoint(timed: Trained) -> None:
    rank = of(timed, "measures")
    assert rank.totals.steps == {"train": 3 * 4 + 1, "eval": 3 * 3}
    saved = COMPONENTS.index("checkpoint")
    evaluated = [step for step in rank.steps if step.phase == "eval"]
    own = [step.duration - sum(step.components) for step in evaluated]
    assert [each > 0.0399 for each in own[2::3]] == [True] * 3
    assert not any(step.components[saved] for step in evaluated)
    assert [place for place, seconds in enumerate(rank.all_seconds("checkpoint")) if seconds] == [4, 8, 12]


def test_a_profiler_that_is_on_in_a_part_of_each_step_is_seen(timed: Trained) -> None:
    assert [line.rstrip() for line in timed.errors.splitlines() if line.startswith("on in the pass:")] == [
        "on in the pass: cProfile.Profile",
        "on in the pass:",
    ]


def test_a_usual_step_is_recorded_as_one_that_hooks_look_at_closely(timed: Trained) -> None:
    rank = of(timed, "usual")
    assert 7 <= rank.totals.gauges["closely"] < 30
    assert rank.totals.steps == {"train": 30}
    for step in rank.steps:
        data_wait, forward, backward, optimizer = step.components[:4]
        assert min(forward, backward) > 0.0049
        assert data_wait > 0.0049 if step.number else data_wait == 0.0  # the first begins with its batch
        assert optimizer > 0
        assert sum(step.components) <= step.duration
    assert [sum(loader.wait_counts) for loader in rank.totals.loaders if loader.phase == "train"] == [30]


def test_the_first_step_begins_with_its_batch_and_later_passes_wait_for_their_workers(timed: Trained) -> None:
    rank = of(timed, "workers")
    waits = [step.components[0] for step in rank.steps]
    assert len(waits) == 6
    assert waits[0] == 0.0
    assert waits[3] > 0.3
    assert rank.totals.loaders[0].wait_sum > 0.6


def test_the_operators_of_a_step_are_counted_after_the_20th(timed: Trained) -> None:
    gauges = of(timed, "of rows").totals.gauges
    of_rows = 2 * 8 + 2  # each row is selected and doubled; all are stacked and summed
    of_layer = 2  # a matrix is transposed and multiplied
    assert (gauges[OPERATORS], gauges[LEAVES]) == (of_rows + of_layer, 2)
    assert (gauges[FIRST_OPERATORS], gauges[DOUBLES]) == (gauges[OPERATORS], 0)


def test_the_first_step_of_a_run_counts_although_the_optimizer_of_the_run_before_lives_on(
    timed: Trained,
) -> None:
    assert [of(timed, name).totals.steps for name in ("fold 1", "fold 2")] == [{"train": 4}] * 2


def test_the_operators_of_all_backward_passes_of_a_step_are_counted(timed: Trained) -> None:
    gauges = of(timed, "accumulates").totals.gauges
    of_pass = 3  # a matrix is transposed and multiplied, the result is summed
    assert (gauges[OPERATORS], gauges[LEAVES], gauges[FIRST_OPERATORS]) == (8 * of_pass, 2, 8 * of_pass)


def test_a_graph_that_grows_keeps_the_count_of_its_first_look(timed: Trained) -> None:
    gauges = of(timed, "growing").totals.gauges
    assert gauges[OPERATORS] > 2.5 * gauges[FIRST_OPERATORS] > 0
    assert gauges[DOUBLES] == 2


def test_the_share_of_looks_at_which_the_script_s_own_profiler_ran_is_known(timed: Trained) -> None:
    assert PROFILED not in of(timed, "of rows").totals.gauges
    assert of(timed, "growing").totals.gauges[PROFILED] == pytest.approx(1 / 3)


def test_a_module_is_timed_whenever_the_script_first_calls_it_and_counts_for_backward_if_called_there(
    timed: Trained,
) -> None:
    steps = of(timed, "late").steps
    slow = [[part > 0.0049 for part in step.components[1:3]] for step in steps]  # forward, backward
    assert slow[8:12] == [[True, False]] * 4
    assert slow[12:16] == [[True, True]] * 4
    assert [forward for forward, _ in slow[16:]] == [True] * 8


def test_an_error_ends_the_script_as_without_hooks_and_its_steps_stay(timed: Trained) -> None:
    rank = of(timed, "error")
    assert rank.totals.steps == {"train": 5}
    assert rank.totals.end is not None
    # PyTorch 2.15 begins the message with "addmm: "
    assert re.match(r"RuntimeError: (addmm: )?mat1 and mat2 shapes cannot be", timed.errors.splitlines()[-1])
    assert "stepscope:" not in timed.errors


VALIDATES = """
x, y = data.tensors
teacher = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(24):
    teacher(x)  # is not trained
    loss = loss_of(model(x), y)
    for _ in range(30): loss_of(model(x), y).item()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
"""
# Looks at settings are at 20, 40 and 80.
VALIDATES_SELDOM = """
x, y = data.tensors
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(104):
    loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
    if step and step % 50 == 0:
        slow = model.register_forward_pre_hook(lambda *_: time.sleep(0.01))
        for _ in range(100): loss_of(model(x), y).item()
        slow.remove()
"""
USES_ALL = """
x, y = data.tensors
critic, generator = Net(), torch.nn.Linear(2, x.shape[1])
of_critic, of_generator = (torch.optim.SGD(each.parameters(), lr=0.01) for each in (critic, generator))
class Flat(Net):
    def forward(self, x): return Net.forward(self, x).view(-1)
flat = Flat()
of_critic.add_param_group({"params": flat.parameters()})
for step in range(24):
    with torch.no_grad(): critic(x)
    scores = flat(x)
    scores /= 2  # its function is another one from now on
    scores.mean().backward()
    made = generator(torch.ones(8, 2))  # goes through a backward pass after the step of the critic
    points = x.clone().requires_grad_()
    slope, = torch.autograd.grad(critic(points).sum(), points, create_graph=True)
    loss = {"loss": critic(made.detach()).mean(), "more": [critic(x).mean()]}
    (loss["loss"] + loss["more"][0] + slope.square().mean()).backward()
    of_critic.step(); of_critic.zero_grad()
    critic(made).mean().backward()
    of_generator.step(); of_generator.zero_grad(); of_critic.zero_grad()
"""


GROUPS = """
x, y = data.tensors
parameters = list(model.parameters())
groups = [{"params": [each]} for each in parameters] if %s else parameters
optimizer = torch.optim.SGD(groups, lr=0.01, foreach=True)
for _ in range(24):
    loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
"""


# Of each, the model and the optimizer outlive the run, as in a list of what was tried.
KEPT = "\nglobals().setdefault('kept', []).append((model, optimizer))\n"
HEAD_ONLY = """
body, head = torch.nn.Linear(16, 30), torch.nn.Linear(30, 2)
optimizer = torch.optim.Adam([{"params": head.parameters()}], lr=0.01)
for step in range(50):
    if step == %d: body.requires_grad_(False)
    head(body(data.tensors[0][:8])).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
WRITES_DATA = """
class Own(torch.optim.Optimizer):
    def step(self):
        for each in self.param_groups[0]["params"]: each.data.sub_(each.grad)  # the version stays
body, head = torch.nn.Linear(16, 30), torch.nn.Linear(30, 2)
optimizer, own = torch.optim.Adam(head.parameters(), lr=0.01), Own(body.parameters(), {})
for step in range(50):
    head(body(data.tensors[0][:8])).sum().backward()
    optimizer.step(); own.step(); optimizer.zero_grad(); own.zero_grad()
"""
GAN = """
generator, critic = torch.nn.Linear(16, 30), torch.nn.Linear(30, 2)
of_generator = torch.optim.Adam(generator.parameters())
optimizer = torch.optim.Adam(critic.parameters())
for step in range(50):
    made = generator(data.tensors[0][:8])
    optimizer.zero_grad(); critic(made%s).sum().backward(); optimizer.step()
    of_generator.zero_grad(); critic(generator(data.tensors[0][:8])).sum().backward(); of_generator.step()
"""
COLLECTS = """
optimizer, parameters = torch.optim.SGD(model.parameters(), lr=0.01), list(model.parameters())
for step in range(50):  # as gradient surgery does for its tasks
    sums = [torch.zeros_like(each) for each in parameters]
    for task in range(2):
        optimizer.zero_grad(); model(data.tensors[0][:8])[:, task].sum().backward()
        for each, of_all in zip(parameters, sums): of_all += each.grad
    for each, of_all in zip(parameters, sums): each.grad.copy_(of_all)
    optimizer.step()
"""
UPDATES_COPIES = """
body, head = torch.nn.Linear(16, 30), torch.nn.Linear(30, 2)
copies = [each.detach().clone().requires_grad_() for each in body.parameters()]
optimizer = torch.optim.Adam([*copies, *head.parameters()], lr=0.01)
for step in range(50):
    head(body(data.tensors[0][:8])).sum().backward()
    for each, copy in zip(body.parameters(), copies): copy.grad = each.grad
    optimizer.step(); optimizer.zero_grad()
    for each, copy in zip(body.parameters(), copies): each.data.copy_(copy.data)
"""
SMALL = """
x, y = data.tensors
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(30):
    loss_of(model(x[:{samples}]), y[:{samples}]).mul({scale}).backward()
    optimizer.step(); optimizer.zero_grad()
"""
PADDED = """
def batch(rows):
    mask = torch.arange(%s) < torch.tensor([3, 8])[:, None]
    return {"x": torch.stack([x for x, _ in rows]), "attention_mask": mask.long()}
for _ in range(3):
    for each_batch in DataLoader(data, batch_size=8, collate_fn=batch):
        model(each_batch["x"]).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
SUBCLASS = """
import sys
asked = set()
class Asked(torch.Tensor):  # as one of FSDP2, which may have to ask all ranks
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        if "torch_hooks" in sys._getframe(1).f_code.co_filename: asked.add(function.__qualname__)
        return super().__torch_function__(function, types, arguments, keywords or {})
def batch(rows):
    x = torch.stack([x for x, _ in rows]).as_subclass(Asked)
    return {"x": x, "attention_mask": torch.tensor([[1, 0]] * 8).as_subclass(Asked)}
for _ in range(3):
    for each_batch in DataLoader(data, batch_size=8, collate_fn=batch):
        model(each_batch["x"]).as_subclass(torch.Tensor).sum().backward()
        optimizer.step(); optimizer.zero_grad()
if asked: sys.exit(f"hooks asked for {asked}")
"""


HALF = """
from stepscope.training.frameworks.torch_hooks import slow_numbers
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as mode_of_the_script:
    slow_numbers._is_slow(torch.bfloat16, True)
assert mode_of_the_script.get_total_flops() == 0
slow_numbers._is_slow.cache_clear()
half = float if {supported} else 4.0.__mul__  # of a layer's seconds, however busy the machine is
slow_numbers._seconds = lambda kind, _: half(1.0) if kind is torch.bfloat16 else 1.0
model.to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range({steps}):
    model(data.tensors[0].bfloat16()).float().sum().backward(); optimizer.step(); optimizer.zero_grad()
"""


INPUTS_GROW = """
x, y = data.tensors
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(44):
    rows = 24 + 24 * (step > 30)
    loss_of(model(x[:rows]), y[:rows]).backward(); optimizer.step(); optimizer.zero_grad()
"""
LOOKED_AT = {
    "validates": VALIDATES,
    "inputs that grow": INPUTS_GROW,
    "uses all": USES_ALL,  # after a run with a pass that is unused
    "validates seldom": VALIDATES_SELDOM,
    "alone": GROUPS % True,
    "together": GROUPS % False,
    "all trained": HEAD_ONLY % 0,
    "head only": HEAD_ONLY % 99,
    "two optimizers, one of the script": WRITES_DATA,
    "GAN": GAN % "",
    "GAN, detached": GAN % ".detach()",
    "GAN, set to 0": (GAN % "").replace("zero_grad()", "zero_grad(set_to_none=False)"),
    "gradients that the script collects": COLLECTS,
    "copies": UPDATES_COPIES,
    "batches": SMALL.format(samples=8, scale=1.0),
    "samples": SMALL.format(samples=1, scale=1e-18),
    "padded": PADDED % 10,
    "to the longest": PADDED % 8,
    "a subclass": SUBCLASS,
    "half precision, slow": HALF.format(supported=False, steps=30),
    "half precision, slow in each step": HALF.format(supported=False, steps=3),
    "half precision, fast": HALF.format(supported=True, steps=30),
}


@pytest.fixture(scope="module")
def gauges(timed: Trained) -> dict[str, Mapping[str, float]]:
    """What is known of each after the looks of hooks."""
    return {name: of(timed, name).totals.gauges for name in LOOKED_AT}


@pytest.mark.parametrize("name", ["validates", "validates seldom"])
def test_passes_of_the_trained_model_that_no_backward_pass_goes_through_are_timed(
    gauges: dict[str, Mapping[str, float]], name: str
) -> None:
    assert gauges[name][FORWARD_UNUSED] > gauges[name][FORWARD_USED] > 0


@pytest.mark.parametrize(("name", "growth"), [("validates seldom", 1), ("inputs that grow", 2)])
def test_what_models_get_is_compared_with_the_first_look(
    gauges: dict[str, Mapping[str, float]], name: str, growth: int
) -> None:
    assert gauges[name][GROWTH] == growth


def test_no_pass_is_unused_that_any_kind_of_backward_pass_goes_through(
    gauges: dict[str, Mapping[str, float]],
) -> None:
    assert OPERATORS in gauges["uses all"], "hooks looked"
    assert FORWARD_UNUSED not in gauges["uses all"]


def test_tensors_that_are_alone_in_their_group_are_updated_one_by_one(
    gauges: dict[str, Mapping[str, float]],
) -> None:
    assert gauges["alone"][TENSORS] > 1
    assert gauges["together"][TENSORS] == 0


def test_what_slows_computing_is_known_after_a_look_and_not_there_if_nothing_does(
    gauges: dict[str, Mapping[str, float]],
) -> None:
    slow = {UNTRAINED, HALVES, DENORMALS, ONE_SAMPLE, PADDING}
    found = {name: {each: of_run[each] for each in slow & of_run.keys()} for name, of_run in gauges.items()}
    denormals = found["samples"].pop(DENORMALS)
    assert denormals > 0.1, "the squares of gradients, up to a third of what Adam has"
    assert {name: slowed for name, slowed in found.items() if slowed} == {
        "head only": {UNTRAINED: pytest.approx(510 / 572)},
        "GAN": {UNTRAINED: pytest.approx(1 / 2)},  # in each pass, those of the other model
        "GAN, detached": {UNTRAINED: pytest.approx(62 / 634)},
        "GAN, set to 0": {UNTRAINED: pytest.approx(1 / 2)},
        "samples": {ONE_SAMPLE: 1.0},
        "padded": {PADDING: pytest.approx(0.2)},
        "half precision, slow": {HALVES: 4},
        "half precision, slow in each step": {HALVES: 4},
    }


THREADS = """
import threading
def loop(steps, ended):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for i, (x, y) in zip(range(steps), DataLoader(data, batch_size=4)):
        loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        ended(i)
def several(_):  # the other loop makes three steps in each of this one
    asks.set(); answered.wait(); answered.clear()
def three(i):
    if i % 3 == 2:
        asks.clear(); answered.set(); asks.wait()
asks, answered = threading.Event(), threading.Event()
def other():
    asks.wait()
    loop(24, three)
thread = threading.Thread(target=other, daemon=True)
thread.start()
loop(8, several)
asks.set()
thread.join()
"""


ONE_AFTER_THE_OTHER = """
import threading
def loop():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(data, batch_size=24):
        loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
ended = threading.Event()
for _ in range(2):
    thread = threading.Thread(target=loop)
    thread.start(); thread.join()
    for _ in range(3):  # otherwise the next thread may get the number of this one
        threading.Thread(target=ended.wait).start()
ended.set()
"""


NOT_STARTED = """
class Retried(DataLoader):
    fails = True
    def _get_iterator(self):
        if self.fails:
            self.fails = False
            raise OSError("no process left")
        return super()._get_iterator()
def batches_of(loader):
    try:
        yield from loader
    except OSError:
        yield from loader
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=32):
        loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
    with torch.no_grad():
        for x, y in batches_of(Retried(data, batch_size=48)): model(x)
"""


STATEFUL = """
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter
class StatefulDataLoader(DataLoader):
    def __iter__(self):
        kind = _MultiProcessingDataLoaderIter if self.num_workers else _SingleProcessDataLoaderIter
        self._iterator = kind(self)
        return self._iterator
"""
TRAINED_WITH_IT = """
from torchdata.stateful_dataloader.stateful_dataloader import StatefulDataLoader
for workers in (0, 1):
    for x, y in StatefulDataLoader(data, batch_size=16, num_workers=workers):
        loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
"""


WRAPPED = """
class Around:
    def __init__(self, iterator): self.iterator = iterator
    def __iter__(self): return self
    def _reset(self, loader): self.iterator._reset(loader)
    def __next__(self): return next(self.iterator)
class Wraps(DataLoader):
    def _get_iterator(self): return Around(super()._get_iterator())
class Generates(DataLoader):
    def _get_iterator(self): return (batch for batch in self.batch_sampler)
for batch in Generates(data, batch_size=48): pass
loader = Wraps(data, batch_size=16, num_workers=1, persistent_workers=True)
for epoch in range(2):
    for x, y in loader: loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
    with torch.no_grad():
        for x, y in Wraps(data, batch_size=24): model(x)
"""


NESTED = """
class Pieces(torch.utils.data.Dataset):
    whole = iter(())
    pieces = []
    def __len__(self): return len(data)
    def __getitem__(self, _):
        if not self.pieces:
            batch = next(self.whole, None)
            if batch is None:
                self.whole = iter(DataLoader(data, batch_size=8, num_workers=1, prefetch_factor=3))
                batch = next(self.whole)
            self.pieces = list(zip(*batch))
        return self.pieces.pop()
loader = DataLoader(Pieces(), batch_size=16)
for epoch in range(2):
    for x, y in loader:
        loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
"""


ENDS_WORKERS = """
from multiprocessing.util import Finalize
def ends_late(_): Finalize(None, time.sleep, args=(0.3,), exitpriority=1)
for step in range(4):
    x, y = next(iter(DataLoader(data, batch_size=8, num_workers=1, worker_init_fn=ends_late)))
    loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
"""


READS_ALL_FIRST = """
batches = list(DataLoader(data, batch_size={size}))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
stepscope.gauge("was_set_up", time.time())
for x, y in batches:
    loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
"""
SKIPS_SOME = """
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def late(samples):
    time.sleep(0.05)
    return [torch.stack(each) for each in zip(*samples)]
for number, (x, y) in enumerate(DataLoader(data, batch_size=8, collate_fn=late)):
    if number < 8:
        stepscope.gauge("was_set_up", time.time())
        continue
    loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
"""
READS_AHEAD = """
import queue, threading
batches = queue.Queue(2)
def read():
    for batch in DataLoader(data, batch_size=4): batches.put(batch)
    batches.put(None)
thread = threading.Thread(target=read)
thread.start()
while (batch := batches.get()) is not None:
    loss_of(model(batch[0]), batch[1]).backward(); optimizer.step(); optimizer.zero_grad()
thread.join()
"""


# With threads or loaders of their own, or with set-up before the first step.
ODD_LOOPS = {
    **{f"reads all, {size}": READS_ALL_FIRST.format(size=size) for size in (32, 96)},
    "skips some": SKIPS_SOME,
    "reads ahead": READS_AHEAD,
    "not started": NOT_STARTED,
    "torchdata": TRAINED_WITH_IT,
    "wrapped": WRAPPED,
    "nested": NESTED,
    "ends workers": ENDS_WORKERS,
    "two threads": THREADS,
    "one after the other": ONE_AFTER_THE_OTHER,
}


@pytest.mark.parametrize("size", [32, 96])
def test_the_set_up_after_all_data_were_read_is_no_part_of_the_first_step(size: int, timed: Trained) -> None:
    rank = of(timed, f"reads all, {size}")
    assert rank.totals.steps == {"train": 96 // size}
    assert rank.steps[0].start >= rank.totals.gauges["was_set_up"]


def test_batches_that_a_resumed_run_skips_are_no_part_of_the_first_step(timed: Trained) -> None:
    rank = of(timed, "skips some")
    assert rank.totals.steps == {"train": 4}
    first = rank.steps[0]
    assert first.start >= rank.totals.gauges["was_set_up"]
    assert first.components[COMPONENTS.index("data_wait")] >= 0.05


def test_a_thread_that_reads_ahead_leaves_the_steps_to_the_loop(timed: Trained) -> None:
    rank = of(timed, "reads ahead")
    assert rank.totals.steps == {"train": 24}
    assert rank.totals.loaders == ()


def test_a_loader_that_could_not_start_was_asked_for_no_batch(timed: Trained) -> None:
    assert of(timed, "not started").totals.steps == {"train": 6, "eval": 4}


def test_the_loader_of_torchdata_which_has_its_own_iter_is_timed(timed: Trained) -> None:
    rank = of(timed, "torchdata")
    assert rank.totals.steps == {"train": 12}
    (loader,) = rank.totals.loaders
    assert sum(loader.wait_counts) == 12
    assert (loader.workers, loader.batch_size) == (1, 16)
    assert sum(rank.totals.fetch_counts) >= 6


def test_a_loader_that_wraps_its_iterator_is_timed(timed: Trained) -> None:
    rank = of(timed, "wrapped")
    assert rank.totals.steps == {"train": 12, "eval": 8}
    waits = {loader.phase: sum(loader.wait_counts) for loader in rank.totals.loaders}
    assert waits == {"train": 12, "eval": 8}


def test_the_end_of_workers_in_each_step_is_a_wait_for_data(timed: Trained) -> None:
    rank = of(timed, "ends workers")
    assert rank.totals.steps == {"train": 4}
    assert min(rank.all_seconds("data_wait")) >= 0.3


def test_workers_of_a_loader_that_a_dataset_asks_make_the_batches(timed: Trained) -> None:
    rank = of(timed, "nested")
    assert rank.totals.steps == {"train": 12}
    (loader,) = rank.totals.loaders
    assert (loader.workers, loader.prefetch_factor, loader.batch_size) == (1, 3, 16)
    assert sum(loader.wait_counts) == 12
    assert sum(rank.totals.fetch_counts) == 1 + 24, "only the first batch counts for this process, too"


def test_a_faster_loop_in_another_thread_takes_no_step_from_the_first_one(timed: Trained) -> None:
    rank = of(timed, "two threads")
    assert rank.totals.steps == {"train": 8}
    (loader,) = rank.totals.loaders
    assert sum(loader.wait_counts) == 8


def test_threads_that_train_one_after_the_other_all_take_steps(timed: Trained) -> None:
    assert of(timed, "one after the other").totals.steps == {"train": 8}
