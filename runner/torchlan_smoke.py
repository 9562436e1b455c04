# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A tiny GPT, really trained, that needs nothing but torch: "do my hosts train together?" in under a minute.

Command line, log lines and checkpoints are those of nanochat's base_train. The text is a small made-up grammar, read as
bytes; which rows a step reads depends on the step alone, so any number of ranks trains on the same data. Like nanochat
it makes no process group on CPUs by itself, and exchanges nothing where none exists.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

VOCAB = 256
SMALL = 1024  # smaller parameters are reduced as a whole, larger ones are sharded over the ranks
VAL_ROW = 1 << 40  # validation rows start here, training never gets there


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="torchlan_smoke", description="Train a tiny GPT on made-up text")
    add = parser.add_argument
    add("--run", default="dummy", help="run name (only printed)")
    add("--device-type", default="", help="cuda|cpu (empty = autodetect)")
    add("--depth", type=int, default=2, help="layers")
    add("--aspect-ratio", type=int, default=64, help="model_dim = depth * aspect_ratio, rounded up to head_dim")
    add("--head-dim", type=int, default=64)
    add("--max-seq-len", type=int, default=128)
    add("--num-iterations", type=int, default=20, help="optimizer steps")
    add("--device-batch-size", type=int, default=4, help="rows per rank and micro step")
    add("--total-batch-size", type=int, default=-1, help="tokens per step over all ranks (-1 = one micro step)")
    add("--warmup-steps", type=int, default=4)
    add("--warmdown-ratio", type=float, default=0.5)
    add("--final-lr-frac", type=float, default=0.05)
    add(
        "--learning-rate",
        type=float,
        default=1.5e-3,
        help="this workload's own; nanochat's rates are accepted and unused",
    )
    add("--eval-every", type=int, default=-1, help="validation every N steps (-1 = never)")
    add("--eval-tokens", type=int, default=4096)
    add("--save-every", type=int, default=-1, help="checkpoint every N steps (-1 = at the end only)")
    add("--sample-every", type=int, default=-1, help="rank 0 writes a text every N steps (-1 = never)")
    add("--resume-from-step", type=int, default=-1)
    add("--model-tag", default=None, help="checkpoint folder (default d{depth})")
    unused = parser.add_argument_group("accepted as nanochat accepts them, without effect here")
    unused.add_argument("--window-pattern", default="L")
    unused.add_argument("--core-metric-every", type=int, default=-1)
    unused.add_argument("--core-metric-max-per-task", type=int, default=-1)
    for name in ("embedding-lr", "unembedding-lr", "matrix-lr", "scalar-lr", "weight-decay"):
        unused.add_argument("--" + name, type=float, default=0.0)
    for name in ("target-flops", "target-param-data-ratio"):
        unused.add_argument("--" + name, type=float, default=-1.0)
    tests = parser.add_argument_group("for tests")
    tests.add_argument(
        "--fail-at-step", type=int, default=-1, help="raise an error at this step; at the last, after saving"
    )
    tests.add_argument("--fail-rank", type=int, default=0, help="in this rank")
    tests.add_argument("--step-seconds", type=float, default=0.0, help="sleep up to this length of each step")
    tests.add_argument("--sample-seconds", type=float, default=0.0, help="rank 0 alone takes so long to sample")
    tests.add_argument("--save-seconds", type=float, default=0.0, help="and so long to save the model")
    return parser.parse_args(argv)


# ---- text: sentences of a small grammar ----

_WHO = "the miller|a red fox|the old clock|my neighbour|a quiet river|the night train|her brother|a small engine".split(
    "|"
)
_DOES = "follows|carries|paints|forgets|repairs|watches|answers|borrows".split("|")
_WHAT = "the lantern|a wooden ladder|the morning paper|an empty basket|the northern road|a silver key".split("|")
_WHEN = "at dawn|before the rain|after supper|every winter|without a sound|for the third time|as it was told".split("|")


def row(number: int, length: int) -> bytes:
    """Row `number` of the endless text: the same on every host."""
    rng = random.Random(number * 7919 + 13)
    text = ""
    while len(text) < length:
        text += "%s %s %s %s. " % (rng.choice(_WHO), rng.choice(_DOES), rng.choice(_WHAT), rng.choice(_WHEN))
    return text[:length].encode("ascii")


def batch(first_row: int, rows: int, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    data = bytearray(b"".join(row(first_row + i, length + 1) for i in range(rows)))
    tokens = torch.frombuffer(data, dtype=torch.uint8).view(rows, length + 1).to(device=device, dtype=torch.int64)
    return tokens[:, :-1], tokens[:, 1:]


# ---- model ----


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, dim = x.shape
        q, k, v = (
            part.view(rows, length, self.heads, dim // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(dim, dim=2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, dim))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class TinyGPT(nn.Module):
    def __init__(self, depth: int, dim: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, dim), nn.Embedding(length, dim)
        self.blocks = nn.ModuleList([Block(dim, heads) for _layer in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, VOCAB, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.logits(x).view(-1, VOCAB), y.reshape(-1))

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.size(1), device=x.device))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h)).float()

    def next_token(self, x: torch.Tensor) -> int:
        return int(self.logits(x)[0, -1].argmax())


# ---- optimizer: Adam whose state is sharded over the ranks ----


def _light(name: str) -> Any:
    """A method of Optimizer without its wrapper, which imports all of torch's compiler: seconds, for nothing here."""
    method = getattr(torch.optim.Optimizer, name)
    return getattr(method, "__wrapped__", method)


class ShardedAdam(torch.optim.Optimizer):
    """Each rank owns an equal part of every large parameter: gradients go to their owner, results come from it."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.95), "eps": 1e-8})

    add_param_group = _light("add_param_group")
    state_dict = _light("state_dict")
    load_state_dict = _light("load_state_dict")

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        world, rank = (dist.get_world_size(), dist.get_rank()) if together else (1, 0)
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        jobs = []
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                flat = p.grad.reshape(-1)
                future = None
                if not together:
                    part = flat
                elif p.numel() < SMALL:
                    part = flat.contiguous()
                    future = dist.all_reduce(part, op=dist.ReduceOp.AVG, async_op=True).get_future()
                else:
                    part = flat.new_empty(math.ceil(flat.numel() / world))
                    padded = F.pad(flat, (0, part.numel() * world - flat.numel())).contiguous()
                    future = scatter(part, padded, op=dist.ReduceOp.AVG, async_op=True).get_future()
                jobs.append((group, p, part, future))
        gathers = []
        for group, p, part, future in jobs:
            if future is not None:
                future.wait()
            whole = p.detach().reshape(-1)
            if not together or p.numel() < SMALL:
                self._update(group, p, whole, part)
                if whole.data_ptr() != p.data_ptr():
                    p.copy_(whole.view_as(p))
                continue
            size = part.numel()
            padded = F.pad(whole, (0, size * world - whole.numel()))
            mine = padded[rank * size : (rank + 1) * size].clone()
            self._update(group, p, mine, part)
            gathers.append((p, padded, mine, gather(padded, mine, async_op=True).get_future()))
        for p, padded, _mine, future in gathers:
            future.wait()
            p.copy_(padded[: p.numel()].view_as(p))

    def _update(self, group: dict[str, Any], p: torch.Tensor, value: torch.Tensor, grad: torch.Tensor) -> None:
        state = self.state[p]
        if not state:
            state["step"] = 0
            state["mean"], state["square"] = torch.zeros_like(grad), torch.zeros_like(grad)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        state["mean"].lerp_(grad, 1 - beta1)
        state["square"].lerp_(grad.square(), 1 - beta2)
        mean = state["mean"] / (1 - beta1 ** state["step"])
        square = state["square"] / (1 - beta2 ** state["step"])
        value.sub_(mean / (square.sqrt() + group["eps"]), alpha=group["lr"])


def print0(text: str) -> None:
    if int(os.environ.get("RANK", "0")) == 0:
        print(text, flush=True)


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    device_type = args.device_type or ("cuda" if torch.cuda.is_available() else "cpu")
    launched = all(name in os.environ for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    rank, local_rank, world = (
        int(os.environ.get(n, d)) for n, d in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 1))
    )
    device = torch.device(device_type)
    if device_type == "cuda":
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        if launched:
            dist.init_process_group("nccl", device_id=device)
            dist.barrier()
    print0("Distributed world size: %d" % world)
    torch.manual_seed(42)
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(
        os.environ.get("NANOCHAT_DTYPE", ""), torch.float32
    )

    dim = math.ceil(args.depth * args.aspect_ratio / args.head_dim) * args.head_dim
    model = TinyGPT(args.depth, dim, dim // args.head_dim, args.max_seq_len).to(device)
    print0("Parameters: {:,}".format(sum(p.numel() for p in model.parameters())))
    per_micro = args.device_batch_size * args.max_seq_len * world
    total = args.total_batch_size if args.total_batch_size > 0 else per_micro
    if total % per_micro:
        sys.exit(
            "total_batch_size (%d) must be a multiple of device_batch_size * max_seq_len * world_size = %d"
            % (total, per_micro)
        )
    accumulation = total // per_micro
    steps = args.num_iterations if args.num_iterations > 0 else 20
    rows_per_step = total // args.max_seq_len
    print0("Total batch size {:,} => gradient accumulation steps: {}".format(total, accumulation))
    optimizer = ShardedAdam(model.parameters(), args.learning_rate)

    folder = os.path.join(
        os.environ.get("NANOCHAT_BASE_DIR") or os.path.expanduser("~/.cache/nanochat"),
        "base_checkpoints",
        args.model_tag or "d%d" % args.depth,
    )
    step, smooth, val_bpb = 0, 0.0, None
    if args.resume_from_step >= 0:
        step = args.resume_from_step
        model.load_state_dict(torch.load(os.path.join(folder, "model_%06d.pt" % step), map_location=device))
        optimizer.load_state_dict(
            torch.load(os.path.join(folder, "optim_%06d_rank%d.pt" % (step, rank)), map_location=device)
        )
        with open(os.path.join(folder, "meta_%06d.json" % step), encoding="utf-8") as file:
            smooth = json.load(file)["loop_state"]["smooth_train_loss"]
        print0("Resuming optimization from step %d" % step)

    def rate(it: int) -> float:
        down = round(args.warmdown_ratio * steps)
        if it < args.warmup_steps:
            return (it + 1) / args.warmup_steps
        if it <= steps - down or down == 0:
            return 1.0
        left = (steps - it) / down
        return left + (1 - left) * args.final_lr_frac

    def forward(first: int) -> torch.Tensor:
        x, y = batch(first, args.device_batch_size, args.max_seq_len, device)
        with torch.autocast(device_type, dtype=dtype, enabled=dtype != torch.float32):
            return model(x, y)

    def validate() -> float:
        count = max(1, args.eval_tokens // per_micro)
        total_nats = torch.zeros((), device=device)
        with torch.no_grad():
            for number in range(count):
                total_nats += forward(VAL_ROW + (number * world + rank) * args.device_batch_size)
        total_nats /= count
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(total_nats, op=dist.ReduceOp.AVG)
        return float(total_nats.item()) / math.log(2)

    def sample() -> None:
        """Greedy, as long as the model has places for."""
        text = list(row(VAL_ROW, 4))
        with torch.no_grad():
            while len(text) < min(32, args.max_seq_len):
                tokens = torch.tensor([text], device=device)
                text.append(model.next_token(tokens))
        time.sleep(args.sample_seconds)
        print0("Sample: %s" % bytes(text).decode("ascii", "replace"))

    def save() -> None:
        os.makedirs(folder, exist_ok=True)
        if rank == 0:
            time.sleep(args.save_seconds)
            torch.save(model.state_dict(), os.path.join(folder, "model_%06d.pt" % step))
            meta = {
                "step": step,
                "val_bpb": val_bpb,
                "model_config": {
                    "n_layer": args.depth,
                    "n_embd": dim,
                    "sequence_len": args.max_seq_len,
                    "vocab_size": VOCAB,
                },
                "user_config": vars(args),
                "device_batch_size": args.device_batch_size,
                "max_seq_len": args.max_seq_len,
                "total_batch_size": total,
                "loop_state": {"smooth_train_loss": smooth},
            }
            with open(os.path.join(folder, "meta_%06d.json" % step), "w", encoding="utf-8") as file:
                json.dump(meta, file, indent=2)
        torch.save(optimizer.state_dict(), os.path.join(folder, "optim_%06d_rank%d.pt" % (step, rank)))
        print0("Saved checkpoint of step %d to %s" % (step, folder))

    first_step, training_time = step, 0.0
    while True:
        last = step >= steps
        if args.eval_every > 0 and (last or step % args.eval_every == 0):
            val_bpb = validate()
            print0("Step %05d | Validation bpb: %.6f" % (step, val_bpb))
        if rank == 0 and args.sample_every > 0 and (last or (step > first_step and step % args.sample_every == 0)):
            sample()
        if last or (step > first_step and args.save_every > 0 and step % args.save_every == 0):
            save()
        if args.fail_at_step == step and args.fail_rank == rank:
            raise RuntimeError("told to fail at step %d (--fail-at-step)" % step)
        if last:
            break
        began = time.time()
        for micro in range(accumulation):
            first = step * rows_per_step + (micro * world + rank) * args.device_batch_size
            loss = forward(first)
            (loss / accumulation).backward()
        lrm = rate(step)
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * lrm
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None
        shown = float(loss.detach().item())
        if args.step_seconds > time.time() - began:
            time.sleep(args.step_seconds - (time.time() - began))
        took = time.time() - began
        training_time += took
        smooth = 0.9 * smooth + 0.1 * shown
        print0(
            "step {:05d}/{:05d} ({:.2f}%) | loss: {:.6f} | lrm: {:.2f} | dt: {:.2f}ms | tok/sec: {:,} "
            "| epoch: 1 pq: 0 rg: {} | total time: {:.2f}m".format(
                step,
                steps,
                100 * step / steps,
                smooth / (1 - 0.9 ** (step + 1)),
                lrm,
                took * 1000,
                int(total / took),
                step * rows_per_step,
                training_time / 60,
            )
        )
        step += 1
    print0("Total training time: %.2fm" % (training_time / 60))
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
