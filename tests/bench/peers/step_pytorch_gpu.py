#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times training steps of bench_step's networks in PyTorch on a GPU; one JSON line for each combination.

    python3 step_pytorch_gpu.py --models mlp,cnn --batches 64,4096 --modes eager,graph --maths f32,tf32,bf16 --peak

Equal to `bench_step --device cuda`: the layers (step_pytorch.py), one batch of random images that stays on the GPU,
mean cross entropy, SGD with lr 0.001 and momentum 0.9, and what is told: the median over five blocks of the mean step
between two points where the GPU has nothing to do. Not equal, and in PyTorch's favour: labels are on the GPU too
(bench_step hands them over each step), nobody asks for the loss inside a block (bench_step does, one step later),
cuDNN may choose its algorithms by time and need not be deterministic, and of both memory formats the faster one
counts. bf16 is autocast, as in bench_step: activations in 16 bits, parameters and their gradients in 32.

Modes: eager; graph: forward, backward and update captured as one CUDA graph; compile and max-autotune: the network
through torch.compile (mode "reduce-overhead", which uses CUDA graphs, and "max-autotune"; minutes for each network).
A loss that does not go down is an error, as are steps that failed; the exit status is then 1.
"""
import argparse
import json
import statistics
import sys
import time

import torch
from torch import nn

from step_pytorch import FORMATS, NETWORKS, make_input

COMPILED = {"compile": "reduce-overhead", "max-autotune": "max-autotune"}
MODES = ["eager", "graph", *COMPILED]
MATHS = ["f32", "tf32", "bf16"]
BLOCKS = 5


class Timer:
    """Repeats work on the device and takes its time."""

    def __init__(self, device, block_seconds, most):
        self.on_gpu = device.type == "cuda"
        self.block_seconds = block_seconds
        self.most = most

    def drain(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def block(self, work, count):
        """Mean milliseconds of one of `count` calls, between two points where the device has nothing to do."""
        self.drain()
        start = time.perf_counter()
        for _ in range(count):
            work()
        self.drain()
        return (time.perf_counter() - start) * 1e3 / count

    def median(self, work):
        self.block(work, 3)
        probe = self.block(work, 3)
        count = min(self.most, max(3, int(self.block_seconds * 1e3 / probe)))
        return statistics.median(self.block(work, count) for _ in range(BLOCKS))


def set_math(math):
    torch.backends.cuda.matmul.allow_tf32 = math != "f32"
    torch.backends.cudnn.allow_tf32 = math != "f32"


def make_sgd(parameters):
    """The fastest that this PyTorch has."""
    for faster in {"fused": True}, {"foreach": True}:
        try:
            return torch.optim.SGD(parameters, lr=0.001, momentum=0.9, **faster)
        except (TypeError, RuntimeError):
            pass
    return torch.optim.SGD(parameters, lr=0.001, momentum=0.9)


class Training:
    """A network, its batch, and one step of it in a mode."""

    def __init__(self, device, model, batch, mode, math, memory_format):
        torch.manual_seed(1)
        set_math(math)
        self.device, self.math = device, math
        self.model = NETWORKS[model]().to(device=device, memory_format=memory_format)
        images, labels = make_input(model, batch, 1, memory_format)
        self.images, self.labels = images.to(device), labels.to(device)
        self.sgd = make_sgd(list(self.model.parameters()))
        self.loss = None
        if mode in COMPILED:
            self.model = torch.compile(self.model, mode=COMPILED[mode])
        self.first_loss = self.eager_step().item()
        self.step = self.capture() if mode == "graph" else self.eager_step

    def eager_step(self):
        self.sgd.zero_grad(set_to_none=True)
        # Weights are rounded anew in each step; a graph must not keep those of the capture.
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.math == "bf16", cache_enabled=False):
            loss = nn.functional.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        self.sgd.step()
        self.loss = loss.detach()
        return self.loss

    def capture(self):
        """Records a step after a few others on a stream of its own, in which memory is set up."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.eager_step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.sgd.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self.eager_step()
        return graph.replay

    def last_loss(self):
        return self.loss.item()


def measure(device, timer, model, batch, mode, math, formats):
    """The fields of one combination: the fastest memory format's time and all formats' times."""
    formats = ["plain"] if model == "mlp" else formats
    times, losses = {}, {}
    for name in formats:
        training = Training(device, model, batch, mode, math, FORMATS[name])
        times[name] = timer.median(training.step)
        losses[name] = training.first_loss, training.last_loss()
        del training
        if device.type == "cuda":
            torch.cuda.empty_cache()
    best = min(times, key=times.get)
    return {"setting": best, "step_ms": round(times[best], 5), "all_ms": {k: round(v, 5) for k, v in times.items()},
            "first_loss": round(losses[best][0], 5), "last_loss": round(losses[best][1], 5),
            "learns": all(last < first for first, last in losses.values())}


def tell(**fields):
    print(json.dumps(fields), flush=True)


def tell_peaks(device, timer, maths, size, megabytes):
    """Rates of a large product and of a copy inside the device (bytes read and written)."""
    for math in maths:
        set_math(math)
        dtype = torch.bfloat16 if math == "bf16" else torch.float32
        a, b = (torch.rand(size, size, device=device).sub_(0.5).to(dtype) for _ in range(2))
        c = torch.empty_like(a)
        ms = timer.median(lambda a=a, b=b, c=c: torch.matmul(a, b, out=c))
        tell(bench="peak", op=f"matmul {size}", math=math, ms=round(ms, 5), tflops=round(2 * size**3 / ms / 1e9, 3))
    a = torch.rand(megabytes << 18, device=device)
    b = torch.empty_like(a)
    ms = timer.median(lambda: b.copy_(a))
    tell(bench="peak", op=f"copy of {megabytes} MiB", ms=round(ms, 5), gbs=round(2 * a.numel() * 4 / ms / 1e6, 1))


def words(known):
    def parse(text):
        chosen = text.split(",")
        for word in chosen:
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word} is none of {', '.join(known)}")
        return chosen
    return parse


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cpu tries the program: it has no graphs")
    parser.add_argument("--models", type=words(list(NETWORKS)), default=list(NETWORKS))
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[64, 256, 1024, 4096])
    parser.add_argument("--modes", type=words(MODES), default=["eager", "graph"])
    parser.add_argument("--maths", type=words(MATHS), default=MATHS)
    parser.add_argument("--formats", type=words(list(FORMATS)), default=list(FORMATS), help="of networks with images")
    parser.add_argument("--deterministic", action="store_true", help="cudnn.deterministic, as bits are repeated here")
    parser.add_argument("--block-ms", type=float, default=100, help="least time of a block, of 3 to 200 steps")
    parser.add_argument("--peak", action="store_true", help="the rates of a large product and of a copy, too")
    parser.add_argument("--peak-size", type=int, default=8192)
    parser.add_argument("--peak-mb", type=int, default=1024)
    return parser.parse_args()


def main():
    options = parse_options()
    device = torch.device(options.device)
    on_gpu = device.type == "cuda"
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.deterministic = options.deterministic
    timer = Timer(device, options.block_ms / 1e3, 200)
    common = {"bench": "step", "peer": "PyTorch " + torch.__version__,
              "on": torch.cuda.get_device_name(device) if on_gpu else "CPU"}
    failures = 0
    if options.peak:
        tell_peaks(device, timer, options.maths, options.peak_size, options.peak_mb)
    for math, model, batch, mode in ((math, model, batch, mode) for math in options.maths for model in options.models
                                     for batch in options.batches for mode in options.modes):
        mode_told = mode + " deterministic" if options.deterministic else mode
        what = {**common, "model": model, "batch": batch, "mode": mode_told, "math": math}
        if mode == "graph" and not on_gpu:
            tell(**what, skipped="CUDA graphs need a GPU")
            continue
        try:
            result = measure(device, timer, model, batch, mode, math, options.formats)
            failures += not result["learns"]
            tell(**what, **result)
        except Exception as error:  # one that does not fit, say, is told, and the others are measured
            failures += 1
            tell(**what, failed=str(error).splitlines()[0][:200] if str(error) else type(error).__name__)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
