"""Small uses of PyTorch: each returns what its user could see. The script prints it; nothing has an address.

`python torch_uses.py FILE [USE ...]` runs some of them before any training step, then all or the given ones.
"""
# mypy: disable-error-code="misc"
# torch has no types here, so its classes cannot be subclassed by the book.

import copy
import gc
import hashlib
import inspect
import io
import json
import pickle
import sys
import threading
import traceback
import types
import warnings
import weakref
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

warnings.simplefilter("ignore")
torch.set_num_threads(1)

uses: list[Callable[[], object]] = []
WHOLE = Path(sys.argv[1])  # a file with a whole module, which the first run of this script saves


def use(function: Callable[[], object]) -> Callable[[], object]:
    uses.append(function)
    return function


# -- models, and training before the use -----------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8)))
        self.heads = nn.ModuleList([nn.Linear(8, 2), nn.Linear(8, 2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.backbone(x)
        return self.heads[0](x) + self.heads[1](x)


class OwnCall(Net):
    def __call__(self, *arguments: Any, scale: float = 1.0) -> Any:
        return super().__call__(*arguments) * scale


class Seq2Seq(nn.Transformer):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().forward(x, y) * 2.0


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("broken on purpose")


X = torch.linspace(-1, 1, 64).reshape(16, 4)
Y = torch.arange(16) % 2
loss_of = nn.CrossEntropyLoss()


def net(kind: Callable[[], nn.Module] = Net) -> Any:
    torch.manual_seed(0)
    return kind()


def train(*models: Any, call: Callable[[torch.Tensor], torch.Tensor] | None = None, steps: int = 4) -> Any:
    """Trains models that are called one after the other. Returns the first."""
    parameters = [p for model in models for p in model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for x, y in DataLoader(TensorDataset(X.repeat(steps, 1), Y.repeat(steps)), batch_size=16):
        out = x
        for each in [call] if call is not None else models:
            out = each(out)
        optimizer.zero_grad()
        loss_of(out, y).backward()
        optimizer.step()
    return models[0]


def trained() -> Any:
    return train(net())


def digest(value: Any) -> str:
    """Returns a few digits of a text, bytes, a tensor, or the parameters of a model."""
    if isinstance(value, nn.Module):
        value = torch.cat([p.detach().reshape(-1).float() for p in value.parameters()])
    if isinstance(value, torch.Tensor):
        value = json.dumps(value.detach().reshape(-1).tolist())
    return hashlib.sha256(value if isinstance(value, bytes) else str(value).encode()).hexdigest()[:12]


def nodes(graph: torch.fx.Graph) -> list[str]:
    return [f"{node.op} {node.target if isinstance(node.target, str) else node.name}" for node in graph.nodes]


def kinds(model: nn.Module) -> list[str]:
    return [f"{name}: {type(m).__module__}.{type(m).__qualname__}" for name, m in model.named_modules()]


# -- what torch.fx, quantization, export and TorchScript see ---------------------------------------------


def _modules_called_by_themselves() -> nn.Sequential:
    backbone = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))
    head = nn.Linear(8, 2)
    train(backbone, head)
    return backbone.eval()


@use
def graph_of_a_sequential_that_the_script_called() -> object:
    return nodes(torch.fx.symbolic_trace(_modules_called_by_themselves()).graph)


@use
def graph_of_nested_modules() -> object:
    graph = torch.fx.symbolic_trace(trained())
    return nodes(graph.graph), graph.code, [str(n.meta.get("nn_module_stack")) for n in graph.graph.nodes]


@use
def graph_of_a_tracer_that_sees_every_module() -> object:
    class Leaves(torch.fx.Tracer):
        def is_leaf_module(self, m: nn.Module, name: str) -> bool:
            return type(m) is nn.Sequential or super().is_leaf_module(m, name)

    model = trained()
    graph = Leaves().trace(model)
    out = torch.fx.Interpreter(torch.fx.GraphModule(model, graph)).run(X)
    return nodes(graph), digest(out)


@use
def graph_of_a_model_that_is_traced_between_its_steps() -> object:
    model, graphs = net(), []
    for _ in range(5):
        train(model, steps=1)
        graphs.append(nodes(torch.fx.symbolic_trace(model).graph))
    return graphs


@use
def graph_of_make_fx() -> object:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(trained())(X).code


@use
def quantized_by_fx() -> object:
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    model = _modules_called_by_themselves()
    prepared = prepare_fx(model, get_default_qconfig_mapping("x86"), (X,))
    prepared(X)
    return kinds(prepared), kinds(convert_fx(prepared))


@use
def quantized_for_training_by_fx() -> object:
    from torch.ao.quantization import get_default_qat_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_qat_fx

    prepared = train(prepare_qat_fx(net(), get_default_qat_qconfig_mapping("x86"), (X,)))
    return kinds(prepared), kinds(convert_fx(prepared.eval()))


@use
def quantized_eagerly() -> object:
    model = torch.ao.quantization.QuantWrapper(trained()).eval()
    model.qconfig = torch.ao.quantization.get_default_qconfig("x86")
    prepared = torch.ao.quantization.prepare(model)
    prepared(X)
    return kinds(prepared), kinds(torch.ao.quantization.convert(prepared))


@use
def exported() -> object:
    programs = [torch.export.export(trained(), (X,), strict=strict) for strict in (False, True)]
    return [[p.graph_module.code, str(p.graph_signature), sorted(p.state_dict)] for p in programs]


@use
def exported_within_the_first_steps() -> object:
    model = net()
    train(model, steps=1)
    return torch.export.export(model, (X,)).graph_module.code


@use
def scripted() -> object:
    script = torch.jit.script(trained())
    return script.code, str(script.graph), sorted(dir(script)), digest(train(script)), digest(script(X))


@use
def traced_by_torchscript() -> object:
    script = torch.jit.trace(trained(), X)
    return (
        script.code,
        [name for name, _ in script.named_modules()],
        digest(torch.jit.freeze(script.eval())(X)),
    )


# -- what Dynamo sees ------------------------------------------------------------------------------------


def _compiled(make: Callable[[Any], Callable[..., Any]], kind: Callable[[], nn.Module] = Net) -> object:
    """Trains a compiled model. Returns Dynamo's counts, and the code of its graphs."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        graphs.append(graph.print_readable(print_output=False))
        forward: Callable[..., Any] = graph.forward
        return forward

    model = train(net(kind))
    compiled = make(lambda function: torch.compile(function, backend=backend))
    call = compiled(model)
    train(model, call=call)
    with torch.no_grad():
        call(X)
    facts = {
        name: dict(counters[name])
        for name in ("stats", "frames", "graph_break", "recompiles", "unimplemented")
    }
    return facts, graphs, digest(model)


@use
def compiled_module() -> object:
    return _compiled(lambda c: c)


@use
def compiled_with_a_graph_break_inside_and_between_modules() -> object:
    class Breaks(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.backbone(x)
            torch._dynamo.graph_break()
            return self.heads[0](x) + self.heads[1](x)

    def in_between(model: Any) -> Callable[[Any], Any]:
        def call(x: torch.Tensor) -> Any:
            x = model.backbone(x)
            torch._dynamo.graph_break()
            return model.heads[0](x)

        return call

    return _compiled(lambda c: c, Breaks), _compiled(lambda c: lambda model: c(in_between(model)))


def _with_hooks() -> Net:
    model = Net()
    model.heads[0].register_forward_hook(lambda _, __, out: out * 2.0)
    model.register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1.0,))
    return model


@use
def compiled_with_hooks_of_the_user() -> object:
    return _compiled(lambda c: c, _with_hooks), _compiled(
        lambda c: lambda model: c(lambda x: model(x)), _with_hooks
    )


@use
def compiled_many_models_of_one_class() -> object:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    for width in range(4, 16):
        model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))
        train(model, call=torch.compile(model, backend="eager", dynamic=False), steps=1)
    return dict(counters["stats"]), dict(counters["frames"]), dict(counters["graph_break"])


@use
def explained_by_dynamo() -> object:
    torch._dynamo.reset()
    facts = []
    for model in (trained(), train(_with_hooks())):
        found = torch._dynamo.explain(model)(X)
        guards = sorted(f"{guard.name} {guard.create_fn_name()}" for guard in found.out_guards or ())
        facts.append((found.graph_count, found.graph_break_count, found.op_count, guards))
    return facts


# -- other ways to call a model --------------------------------------------------------------------------


@use
def functional_call() -> object:
    model = trained()
    zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    return digest(torch.func.functional_call(model, zeros, (X,))), digest(model(X)), sorted(vars(model))


@use
def gradients_per_sample() -> object:
    model = trained()
    parameters = dict(model.named_parameters())

    def loss(parameters: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss_of(torch.func.functional_call(model, parameters, (x[None],)), y[None])

    found = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, X, Y)
    return {name: [list(g.shape), digest(g)] for name, g in found.items()}


@use
def parametrized() -> object:
    from torch.nn.utils import parametrizations, parametrize

    model = trained()
    parametrizations.weight_norm(model.heads[0])
    parametrizations.spectral_norm(model.heads[1])
    parametrizations.orthogonal(model.backbone[2][0])
    train(model)
    parametrize.remove_parametrizations(model.heads[0], "weight")
    return kinds(model), digest(model), sorted(model.state_dict())


@use
def lazy_modules() -> object:
    model = net(lambda: nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2)))
    model(X)
    return kinds(train(model)), digest(model)


@use
def hooks_of_the_user() -> object:
    calls: list[str] = []
    model = net()

    def note(what: str) -> Callable[..., None]:
        return lambda module, *_: calls.append(f"{what} {type(module).__name__}")

    handles = [
        model.register_forward_pre_hook(note("before")),
        model.register_forward_hook(note("after"), always_call=True),
        model.register_full_backward_hook(note("backward")),
        torch.nn.modules.module.register_module_forward_hook(note("any")),
        torch.nn.modules.module.register_module_full_backward_hook(note("any backward")),
    ]
    train(model)
    for handle in handles:
        handle.remove()
    return calls, digest(train(model))


@use
def flops_of_each_module() -> object:
    from torch.utils.flop_counter import FlopCounterMode

    model = trained()
    with FlopCounterMode(display=False) as counted:
        loss_of(model(X), Y).backward()
    return {
        name: {str(op): n for op, n in flops.items()} for name, flops in counted.get_flop_counts().items()
    }


@use
def events_of_the_profiler() -> object:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        train(net())
    return sorted((event.key, event.count) for event in profile.key_averages())


@use
def modules_in_stacks_of_the_profiler() -> object:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as profile:
        train(net())
    events = profile.profiler.kineto_results.events()
    return sorted(event.name() for event in events if event.name().startswith("nn.Module: "))


@use
def checkpointed_activations() -> object:
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential

    model, calls = net(), []
    model.backbone.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    for reentrant in (False, True):
        train(model, call=lambda x: model.heads[0](checkpoint(model.backbone, x, use_reentrant=reentrant)))  # noqa: B023
    train(
        model, call=lambda x: model.heads[1](checkpoint_sequential(model.backbone, 2, x, use_reentrant=False))
    )
    return calls, digest(model)


@use
def own_calls_and_subclasses() -> object:
    own = net(OwnCall)
    train(own, call=lambda x: own(x, scale=2.0))
    torch.manual_seed(0)
    transformer = Seq2Seq(4, 2, 1, 1, 8, 0.0, batch_first=True)
    train(transformer, call=lambda x: transformer(x[None], x[None])[0])
    return digest(own), digest(transformer), str(inspect.signature(OwnCall.__call__)), sorted(vars(OwnCall))


@use
def replicas() -> object:
    model = trained()
    parallel = train(nn.DataParallel(model))
    replica = model._replicate_for_data_parallel()
    for name, child in model._modules.items():
        replica._modules[name] = child
    replica.backbone = nn.Identity()
    replica.heads = nn.ModuleList([nn.Identity(), nn.Identity()])
    return digest(parallel), digest(replica(X)), sorted(vars(replica))


@use
def replicas_in_threads() -> object:
    model, found = trained(), {}

    def call(i: int) -> None:
        found[i] = digest(model(X + i))

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[i] for i in range(4)]


@use
def distributed_models() -> object:
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ddp = train(nn.parallel.DistributedDataParallel(net()))
        sharded = net()
        fully_shard(sharded)
        train(sharded)
        fsdp = train(FullyShardedDataParallel(net(), device_id=torch.device("cpu")))
        ones = torch.ones(2)
        dist.all_reduce(ones)
        facts = [
            [digest(ddp), sorted(vars(ddp))],
            [
                kinds(sharded),
                sorted(name for name in vars(sharded) if "composable" not in name),
            ],  # with a UUID
            [digest(fsdp), sorted(vars(fsdp))],
            ones.tolist(),
            sorted(dir(dist.group.WORLD)),
        ]
        del ddp, sharded, fsdp
        gc.collect()
        return facts
    finally:
        dist.destroy_process_group()


# -- copies and files ------------------------------------------------------------------------------------


def saved(value: object) -> list[str]:
    """Returns the digest of each part of what `torch.save` writes."""
    file = io.BytesIO()
    torch.save(value, file)
    with zipfile.ZipFile(file) as parts:
        return [f"{name} {digest(parts.read(name))}" for name in parts.namelist()]


@use
def copies() -> object:
    model = trained()
    deep, flat = copy.deepcopy(model), copy.copy(model)
    graph = copy.deepcopy(torch.fx.symbolic_trace(model))
    with torch.no_grad():
        next(model.parameters()).zero_()
    facts = [[digest(each(X)), sorted(vars(each)), digest(each)] for each in (model, deep, flat, graph)]
    return facts, digest(train(deep))


@use
def whole_modules_in_files() -> object:
    facts: list[object] = []
    for model in (trained(), train(nn.Sequential(nn.Linear(4, 2))), train(net(_plain))):
        facts.append(saved(model))
        facts.append(saved(model.state_dict()))
    return facts


def _plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


@use
def a_whole_module_that_another_process_saved() -> object:
    if not WHOLE.exists():
        torch.save(train(net(_plain)), WHOLE)
    return digest(torch.load(WHOLE, weights_only=False)(X))


@use
def functions_in_pickles() -> object:
    import torch.distributed.checkpoint as dcp

    saves = (torch.save, torch.serialization.save, dcp.save, dcp.async_save)
    others = (torch.autograd.backward, torch.distributed.init_process_group)
    return [(f.__module__, pickle.loads(pickle.dumps(f)) is f) for f in (*saves, *others)]


@use
def an_averaged_model() -> object:
    model = net()
    average = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(3):
        train(model)
        average.update_parameters(model)
    torch.optim.swa_utils.update_bn(DataLoader([(X, Y)], batch_size=None), average)
    return digest(average), saved(average.state_dict())


@use
def a_model_that_nothing_needs_any_more() -> object:
    gc.disable()
    try:
        model = trained()
        alive = weakref.ref(model)
        del model
        return alive() is None
    finally:
        gc.enable()


# -- optimizers, schedulers, loaders ---------------------------------------------------------------------


class OwnOptimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


@use
def optimizers_and_schedulers() -> object:
    facts: list[object] = []
    for kind in (torch.optim.AdamW, OwnOptimizer, torch.optim.LBFGS):
        model = net()
        optimizer = kind(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9, cycle_momentum=False)

        def closure(model: Any = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = loss_of(model(X), Y)
            loss.backward()
            return loss

        for _ in range(5):
            optimizer.step(closure)
            scheduler.step()
        facts.append([digest(model), saved(optimizer.state_dict()), saved(copy.deepcopy(optimizer))])
        facts.append(
            [scheduler.get_last_lr(), sorted(vars(optimizer)), sorted(vars(kind)), sorted(vars(scheduler))]
        )
        facts.append(type(optimizer.step).__name__ + str(inspect.signature(optimizer.step)))
    return facts


@use
def steps_that_a_scaler_skips() -> object:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scales = []
    for i in range(6):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model(X), Y)
        scaler.scale(loss * (float("inf") if i == 3 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return scales, digest(model), saved(scaler), sorted(vars(scaler))


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class OwnLoader(DataLoader[Any]):
    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield batch, len(batch)


def _tell(worker: int) -> None:
    information = torch.utils.data.get_worker_info()
    assert information is not None
    information.dataset.told = worker


class Told(torch.utils.data.Dataset[int]):
    told = -1

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return self.told


@use
def loaders() -> object:
    facts: list[object] = []
    for loader in (
        DataLoader(Numbers(), batch_size=4),
        OwnLoader(list(range(10)), batch_size=3),
        DataLoader(Told(), num_workers=1, worker_init_fn=_tell, persistent_workers=True),
    ):
        batches = [str(batch) for _ in range(2) for batch in loader]
        iterator = iter(loader)
        facts.append(
            [batches, sorted(vars(loader)), str(loader.worker_init_fn and loader.worker_init_fn.__name__)]
        )
        facts.append([f"{kind.__module__}.{kind.__qualname__}" for kind in type(iterator).__mro__])
    return facts


# -- what inspection sees --------------------------------------------------------------------------------

HOOKED: tuple[Any, ...] = (
    nn.Module.__call__,
    nn.Linear.__call__,
    Net.__call__,
    nn.Module._call_impl,
    nn.parallel.DistributedDataParallel.forward,
    nn.DataParallel.forward,
    DataLoader.__iter__,
    torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
    torch.utils.data.dataloader._MultiProcessingDataLoaderIter._shutdown_workers,
    torch.optim.SGD.step,
    torch.amp.GradScaler.step,
    torch.Tensor.backward,
    torch.autograd.backward,
    torch.save,
    torch.distributed.init_process_group,
)


@use
def signatures_and_sources() -> object:
    return [
        [
            f.__module__,
            f.__qualname__,
            str(inspect.signature(f)),
            digest(inspect.getsource(f)),
            digest(f.__doc__),
        ]
        for f in HOOKED
    ]


@use
def names_of_objects() -> object:
    model = trained()
    found: list[object] = [[dir(m), list(vars(m)), repr(m)] for m in (*model.modules(), loss_of)]
    found.append([model._compiled_call_impl is None, "__call__" in vars(nn.Linear), "__call__" in vars(Net)])
    return found, sorted(vars(Net)), dir(Net)


def classes() -> dict[str, type]:
    """Returns all classes in the modules of torch, by their name."""
    found: dict[str, type] = {}
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] == "torch" and isinstance(module, types.ModuleType):
            for value in list(vars(module).values()):
                if isinstance(value, type) and getattr(value, "__module__", "").startswith("torch"):
                    found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


@use
def names_of_all_classes_of_torch() -> object:
    trained()
    kinds = classes()
    return len(kinds) > 1000, {name: digest(json.dumps(sorted(vars(kind)))) for name, kind in kinds.items()}


@use
def errors_of_a_model() -> object:
    try:
        nn.Sequential(nn.Linear(4, 4), Broken())(X)
    except ValueError as error:
        frames = traceback.extract_tb(error.__traceback__)
        return str(error), [
            f.line for f in frames if f.filename == __file__ or f.name in ("forward", "_call_impl")
        ]
    return None


def main() -> None:
    names = sys.argv[2:]
    chosen = [each for each in uses if each.__name__ in names] if names else uses
    first = [
        each for each in chosen if each.__name__.startswith("graph") or each in (scripted, quantized_by_fx)
    ]
    for when, functions in (("before the first step", first), ("later", chosen)):
        for function in functions:
            print(f"{when}: {function.__name__}: {json.dumps(function())}", flush=True)


def functions_of_ours() -> list[str]:
    """Returns the functions of Stepscope in classes of PyTorch."""
    return sorted(
        f"{kind.__name__}.{name}"
        for kind in classes().values()
        for name, value in vars(kind).items()
        if "stepscope" in getattr(getattr(value, "__code__", None), "co_filename", "")
    )


if __name__ == "__main__":
    main()
    print("ours:", *functions_of_ours())
