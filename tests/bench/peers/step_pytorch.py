#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Times the training step of bench_step's networks in PyTorch, in its best setting, and prints one JSON line.

    /usr/bin/python3 step_pytorch.py --model cnn
    mpirun -n 2 --bind-to none /usr/bin/python3 step_pytorch.py --model cnn    (DistributedDataParallel over gloo)

Set-up: Debian 12's python3-torch (1.13, whose torch.distributed has gloo; apt-get install python3-torch) and nothing
else. Any other Python works whose torch has gloo. mpirun only starts the ranks: torch never talks to MPI.

The input stays in memory; without --format both memory formats are timed, and the one with the least median is told.
--compile passes the network through torch.compile, --fused takes SGD's fused kernel. On several ranks gradients are
views of buckets, a rank has no thread but gloo's beside those that compute, and what is told is the slowest rank's. (A
static graph, smaller buckets, and zeros in place of forgotten gradients do not change the time.)
"""
import argparse
import json
import os
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # OpenBLAS, which torch.set_num_threads() does not reach, heeds this

import torch
import torch.distributed as dist
from torch import nn


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                         nn.Linear(512, 10))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))


class Block(nn.Module):
    """Two convolutions and a shortcut (He et al., CVPR 2016)."""

    def __init__(self, width_in, width, stride):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width_in, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width),
                                  nn.ReLU(inplace=True), nn.Conv2d(width, width, 3, 1, 1, bias=False),
                                  nn.BatchNorm2d(width))
        self.shortcut = nn.Sequential()
        if stride != 1 or width_in != width:
            self.shortcut = nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False),
                                          nn.BatchNorm2d(width))

    def forward(self, x):
        return torch.relu_(self.body(x) + self.shortcut(x))


def resnet18():
    """ResNet-18 with the stem that is usual for small images."""
    layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    for width_in, width, stride in [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]:
        layers += [Block(width_in, width, stride), Block(width, width, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


NETWORKS = {"mlp": mlp, "cnn": cnn, "resnet18": resnet18}
FORMATS = {"plain": torch.contiguous_format, "channels_last": torch.channels_last}


def make_parser(description, models):
    """A parser of the options that all programs have that time a step."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", choices=models, default="cnn")
    parser.add_argument("--batch", type=int, default=64, help="of each rank")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--format", choices=list(FORMATS), help="of images in memory (both, one after the other)")
    parser.add_argument("--master", default="127.0.0.1", help="address of rank 0's host")
    parser.add_argument("--interface", default="lo", help="network interface that gloo is to use")
    return parser


def add_kernels(parser):
    parser.add_argument("--compile", action="store_true", help="the network through torch.compile")
    parser.add_argument("--fused", action="store_true", help="SGD as one fused kernel")


def formats_of(options):
    return {options.format: FORMATS[options.format]} if options.format else FORMATS


def make_sgd(options, parameters):
    return torch.optim.SGD(parameters, lr=0.001, momentum=0.9, **({"fused": True} if options.fused else {}))


def join_ranks(options, port):
    """(rank, number of ranks) as mpirun says; several of them meet over gloo."""
    rank, ranks = (int(os.environ.get("OMPI_COMM_WORLD_" + name, start)) for name, start in [("RANK", 0), ("SIZE", 1)])
    if ranks > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = options.interface
        dist.init_process_group("gloo", init_method=f"tcp://{options.master}:{port}", rank=rank, world_size=ranks)
    return rank, ranks


def leave_ranks(ranks):
    if ranks > 1:
        dist.barrier()  # rank 0 holds the store that all need to the end
        dist.destroy_process_group()


def make_input(model, batch, seed, memory_format):
    """The same images and labels whenever and on whatever rank the seed is the same."""
    random = torch.Generator().manual_seed(seed)
    shape = (3, 32, 32) if model == "resnet18" else (1, 28, 28)
    images = (torch.rand(batch, *shape, generator=random) - 0.5).to(memory_format=memory_format)
    return images, torch.randint(10, (batch,), generator=random)


def train_step(model, optimizer, images, labels):
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    loss.item()  # bench_step computes the value of the loss too


def step_times(options, step):
    """Milliseconds of each timed step, in increasing order."""
    times = []
    for i in range(options.warmup + options.steps):
        start = time.perf_counter()
        step()
        if i >= options.warmup:
            times.append((time.perf_counter() - start) * 1e3)
    return sorted(times)


def p50_p95(times):
    return [statistics.median(times), times[int(0.95 * (len(times) - 1))]]


def tell(options, peer, ranks, results, **more):
    """Prints the setting whose median is the least; results: its name -> [median, 95th percentile]."""
    best = min(results, key=lambda name: results[name][0])
    print(json.dumps({"bench": "step", "peer": peer, "setting": best, "model": options.model, "batch": options.batch,
                      "ranks": ranks, "threads": options.threads, "step_ms_p50": round(results[best][0], 3),
                      "step_ms_p95": round(results[best][1], 3),
                      "all_ms": {name: round(value[0], 3) for name, value in results.items()}, **more}), flush=True)


def measure(options, rank, ranks, memory_format):
    torch.manual_seed(1)
    model = NETWORKS[options.model]().to(memory_format=memory_format)
    if ranks > 1:
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    sgd = make_sgd(options, model.parameters())
    if options.compile:
        model = torch.compile(model)
    images, labels = make_input(options.model, options.batch, 1 + rank, memory_format)
    result = torch.tensor(p50_p95(step_times(options, lambda: train_step(model, sgd, images, labels))))
    if ranks > 1:
        dist.all_reduce(result, dist.ReduceOp.MAX)
    return result.tolist()


def main():
    parser = make_parser(__doc__.splitlines()[0], list(NETWORKS))
    parser.add_argument("--port", type=int, default=29512, help="of rank 0, where several ranks meet")
    add_kernels(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rank, ranks = join_ranks(options, options.port)
    peer = "PyTorch " + torch.__version__ + (" DDP over gloo" if ranks > 1 else "")
    results = {name: measure(options, rank, ranks, layout) for name, layout in formats_of(options).items()}
    if rank == 0:
        tell(options, peer, ranks, results)
    leave_ranks(ranks)


if __name__ == "__main__":
    main()
