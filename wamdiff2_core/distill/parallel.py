"""Several processes that train one model: ddp (each holds it whole) or fsdp (each holds a shard of every weight).

One entry point for all: under plain python a process is alone; torchrun's environment makes it one of a team.
A loss is a sum of tokens over all ranks, divided by their count over all ranks, so gradients are summed, not averaged.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from wamdiff2_core.distill.batch import TrainBatch
from wamdiff2_core.distill.forward import Pass
from wamdiff2_core.distill.recipe import Recipe
from wamdiff2_core.errors import ConfigError

PATIENCE = timedelta(minutes=30)  # a rank that hears nothing for so long ends with an error
BUCKET = 1 << 24  # weights whose gradients are summed in one message
SEED_STEP = 1_000_003  # between the random numbers of two ranks


@dataclass(frozen=True)
class Team:
    """This process among `world` that train together. kind: "none" | "ddp" | "fsdp"; mesh: of fsdp."""

    device: torch.device
    kind: str = "none"
    rank: int = 0
    world: int = 1
    mesh: DeviceMesh | None = None

    @classmethod
    @contextmanager
    def of(cls, recipe: Recipe) -> Iterator[Team]:
        """The team of this process while a run lasts. ConfigError where torchrun and the recipe do not fit."""
        team = cls._placed(recipe)
        if team.world == 1 and recipe.parallel != "fsdp":
            yield team
            return
        team._connect()
        try:
            mesh = init_device_mesh(team.device.type, (team.world,)) if recipe.parallel == "fsdp" else None
            yield replace(team, mesh=mesh)
        finally:
            dist.destroy_process_group()

    @classmethod
    def _placed(cls, recipe: Recipe) -> Team:
        rank, world, local = (int(os.environ.get(name, default)) for name, default in _ENVIRONMENT.items())
        if world > 1 and recipe.parallel == "none":
            raise ConfigError(
                f"recipe {recipe.name}: parallel is none, but torchrun started {world} processes; "
                "expected parallel=ddp or parallel=fsdp"
            )
        device = device_of(recipe)
        if world > 1 and device.type == "cuda":
            if device.index is not None:
                raise ConfigError(
                    f"recipe {recipe.name}: expected device cuda, each process takes its own; got {device}"
                )
            device = torch.device("cuda", local)
            torch.cuda.set_device(device)
        return cls(device, recipe.parallel, rank, world)

    def _connect(self) -> None:
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        if self.world > 1:
            dist.init_process_group(backend, timeout=PATIENCE)
        else:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)

    @property
    def several(self) -> bool:
        return self.world > 1

    @property
    def leads(self) -> bool:
        """Rank 0 writes files and speaks."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """Sums over ranks; no gradient flows."""
        if not self.several:
            return values
        values = values.detach().clone()
        dist.all_reduce(values)
        return values

    def agreed(self, value: float) -> float:
        """Rank 0's value, on every rank: what ranks decide by a clock they must decide together."""
        if not self.several:
            return value
        told = torch.tensor(value, dtype=torch.float64)
        dist.broadcast(told, 0)
        return float(told)

    def agree_finite(self, tensors: Iterable[Tensor]) -> bool:
        """Whether all values of all ranks' shares are finite."""
        wrong = torch.stack([(~torch.isfinite(local(one.detach()).sum())).float() for one in tensors]).sum()
        return not float(self.total(wrong))

    def unanimous(self, value: float) -> bool:
        """Whether all ranks have rank 0's value. All hear the same."""
        other = torch.tensor(float(self.agreed(value) != value))
        if self.several:
            dist.all_reduce(other)  # in CPU memory, as `agreed`
        return not float(other)

    def wait(self) -> None:
        """Until all ranks are here."""
        self.agreed(0.0)

    def everyones(self, value: Any) -> list[Any]:
        """Each rank's small plain value, in order of ranks, on rank 0; elsewhere an empty list."""
        if not self.several:
            return [value]
        found: list[Any] = [None] * self.world
        dist.gather_object(value, found if self.leads else None)
        return found if self.leads else []

    # A step

    @property
    def loss_scale(self) -> float:
        """What a loss is multiplied by before backward: fsdp averages gradients over ranks."""
        return float(self.world) if self.kind == "fsdp" else 1.0

    def with_all_weights(self, loss: Tensor, model: nn.Module, batch: TrainBatch) -> Tensor:
        """The same loss; under fsdp image weights get a gradient of 0 where this rank has no image: all ranks must sum
        the same weights."""
        if self.mesh is None or batch.pictures:
            return loss
        return loss + 0.0 * torch.stack([weight.sum() for weight in model.model.visual.parameters()]).sum()

    def sum_gradients(self, weights: Iterable[nn.Parameter]) -> None:
        """ddp: every rank gets the sum of all gradients, in fp32. Weights that a rank did not use count as 0 there."""
        if self.kind != "ddp" or not self.several:
            return
        for bucket in _buckets([weight for weight in weights if weight.requires_grad]):
            for weight in bucket:
                if weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
            gradients = [weight.grad for weight in bucket if weight.grad is not None]
            flat = torch.cat([gradient.reshape(-1).float() for gradient in gradients])
            dist.all_reduce(flat)
            for gradient, total in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
                gradient.copy_(total.view_as(gradient))

    def clip(self, weights: Sequence[nn.Parameter], limit: float) -> None:
        """Scale gradients down to a norm of `limit` over all weights and shards."""
        if self.mesh is None:
            torch.nn.utils.clip_grad_norm_(weights, limit)
            return
        norm = torch.nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
        torch.nn.utils.clip_grads_with_norm_(weights, limit, whole(norm))

    # Sharding

    def shard(self, model: nn.Module, how: Pass, dtype: torch.dtype | None = None) -> Pass:
        """fsdp: shard `model`, layer by layer, and the pass that gathers each layer while it is used.

        What is not a layer (embeddings, output matrix, images) is gathered by `run` on the whole model, or by
        `gathered`. dtype: of gathered weights; None: as they are kept. Names of weights stay as they are.
        """
        if self.mesh is None:
            return how
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        for layer in model.model.language_model.layers:
            _with_run(layer, partial(how.layer, layer), self.mesh, policy, reshard=True)
        _with_run(model, _call, self.mesh, policy, reshard=False)
        return replace(how, layer=_run)

    def on_whole(self, model: nn.Module, function: Callable[..., tuple]) -> Callable[..., tuple]:
        """`function` with all weights of `model` outside its layers at hand. Its result is a tuple; under fsdp the
        tensors in it that take part in backward must stand there themselves, not inside other objects."""
        return function if self.mesh is None else partial(model.run_sharded, function)


def device_of(recipe: Recipe) -> torch.device:
    """The recipe's device. ConfigError where there is none of this name, or not on this machine."""
    try:
        device = torch.device(recipe.device)
    except RuntimeError as error:
        raise ConfigError(f"recipe {recipe.name}: device: expected cpu or cuda, got {recipe.device!r}") from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise ConfigError(
                f"recipe {recipe.name}: device {recipe.device}: this machine has {count} CUDA devices that torch can "
                "use; device=cpu bf16=false capture=false runs without"
            )
    return device


_ENVIRONMENT = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}  # as torchrun sets them


@contextmanager
def gathered(model: nn.Module | None) -> Iterator[None]:
    """The weights of a frozen model outside its layers, at hand until the end of a step."""
    if not isinstance(model, FSDPModule):
        yield
        return
    model.run_sharded(_nothing)
    try:
        yield
    finally:
        model.reshard()


def _nothing() -> tuple:
    return ()


def rank_seed(seed: int, rank: int) -> int:
    """A rank's own seed; rank 0 has `seed` itself."""
    return seed + SEED_STEP * rank


def branch(generator: torch.Generator, state: Tensor, rank: int) -> None:
    """Random numbers for a rank that a saved run did not have: others than those of `state`, but following from it."""
    digest = hashlib.sha256(state.cpu().numpy().tobytes()).digest()
    generator.manual_seed(rank_seed(int.from_bytes(digest[:6], "little"), rank))


def _buckets(weights: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Groups of about BUCKET weights."""
    bucket: list[nn.Parameter] = []
    used = 0
    for weight in weights:
        if bucket and used + weight.numel() > BUCKET:
            yield bucket
            bucket, used = [], 0
        bucket.append(weight)
        used += weight.numel()
    if bucket:
        yield bucket


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def _run(layer: nn.Module, *args: Any) -> Tensor:
    """A layer's function between gathering and letting go of its weights."""
    return layer.run_sharded(*args)


def _with_run(
    module: nn.Module, function: Callable[..., Any], mesh: DeviceMesh, policy: MixedPrecisionPolicy, reshard: bool
) -> None:
    """Shard the module; its method `run_sharded` is `function` with the whole weights there."""
    module.run_sharded = function
    fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    register_fsdp_forward_method(module, "run_sharded")


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor on every rank, of a sharded one."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """This rank's shard."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sharded_as(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor that every rank has, cut as `like` is cut."""
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


def collected(tensors: Mapping[str, Tensor], keep: bool, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Whole tensors in CPU memory, on the ranks that `keep`; gathered one after the other, by all ranks together."""
    found = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        if keep:
            found[name] = full.to("cpu", dtype or full.dtype)
    return found
