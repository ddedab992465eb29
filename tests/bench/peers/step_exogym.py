#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times a step of bench_step's networks under EXO Gym's DiLoCo strategy over gloo, and prints one JSON line.

    mpirun -n 2 --bind-to none PYTHON step_exogym.py --model cnn --period 8

PYTHON has torch and exogym. Its Trainer starts ranks on one machine only, so that mpirun starts them here and the
strategy is driven as the Trainer does. The inner optimizer is SGD with momentum, as in the other programs. A step is
the mean of a period, so that the exchange at its end counts; what is told is the median of the periods (at least 2),
on the slowest rank.
"""
import statistics
import sys
import time

sys.dont_write_bytecode = True  # next to the sources

import step_pytorch as common
import torch
import torch.distributed as dist
from exogym.strategy.diloco import DiLoCoStrategy
from exogym.strategy.optim import OptimSpec
from importlib import metadata
from torch import nn


class Run:
    """A network and the strategy that updates it."""

    def __init__(self, options, rank, ranks, layout):
        torch.manual_seed(1)
        self.model = common.NETWORKS[options.model]().to(memory_format=layout)
        fused = {"fused": True} if options.fused else {}
        self.strategy = DiLoCoStrategy(optim_spec=OptimSpec(torch.optim.SGD, lr=0.001, momentum=0.9, **fused),
                                       H=options.period)
        self.strategy._init_node(self.model, rank, ranks)
        self.images, self.labels = common.make_input(options.model, options.batch, 1 + rank, layout)

    def step(self):
        self.strategy.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        self.strategy.step()
        loss.item()

    def period(self, length):
        """Mean milliseconds of a step."""
        start = time.perf_counter()
        for _ in range(length):
            self.step()
        return (time.perf_counter() - start) * 1e3 / length


def measure(options, rank, ranks, layout):
    run = Run(options, rank, ranks, layout)
    run.period(options.period)  # its first step has no exchange
    times = sorted(run.period(options.period) for _ in range(max(2, options.steps // options.period)))
    worst = torch.tensor([statistics.median(times), times[-1]])
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return worst.tolist()


def main():
    parser = common.make_parser(__doc__.splitlines()[0], list(common.NETWORKS))
    parser.add_argument("--period", type=int, default=8, metavar="H", help="local steps between exchanges")
    parser.add_argument("--fused", action="store_true", help="SGD as one fused kernel")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rank, ranks = common.join_ranks(options, 29513)
    if ranks < 2:
        sys.exit("error: DiLoCo needs at least 2 ranks")
    results = {name: measure(options, rank, ranks, layout) for name, layout in common.formats_of(options).items()}
    if rank == 0:
        common.tell(options, f"EXO Gym {metadata.version('exogym')} on PyTorch {torch.__version__}", ranks, results,
                    period=options.period)
    common.leave_ranks(ranks)


if __name__ == "__main__":
    main()
