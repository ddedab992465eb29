#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Times the training step of bench_step's networks in HeAT's DataParallel, in its best setting; prints one JSON line.

    mpirun -n 2 --bind-to none PYTHON step_heat.py --model cnn

PYTHON has heat and mpi4py (pip install heat; bench_peers.py makes such an environment).

heat.nn.DataParallel and heat.optim.DataParallelOptimizer are timed with non-blocking updates, their default, and with
blocking ones, for both memory formats, unless --mode and --format choose. The least median is told. A setting that
fails, or that does not train as PyTorch does alone on the batches of all ranks, is left out, and "left_out" says so.
The input stays in memory, and what is told is the slowest rank's.
"""
import itertools
import sys

sys.dont_write_bytecode = True  # next to the sources

import step_pytorch as common
import torch
from torch import nn

MODES = {"non-blocking": False, "blocking": True}
TOLERANCE = 0.01  # of the largest change of a parameter


def import_heat():
    try:
        import heat
        from mpi4py import MPI
    except ImportError as problem:
        sys.exit(f"error: {sys.executable} has no HeAT: {problem}")
    return heat, MPI


def largest_difference(some, others):
    return max((a - b).abs().max().item() for a, b in zip(some, others))


class Setting:
    """A network with its optimizer, set up in one of the ways that HeAT offers, and this rank's input."""

    def __init__(self, heat, options, mode, format_name):
        self.options, self.format = options, common.FORMATS[format_name]
        self.world = heat.MPI_WORLD
        network = common.NETWORKS[options.model]().to(memory_format=self.format)
        sgd = torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9)
        self.optimizer = heat.optim.DataParallelOptimizer(sgd, MODES[mode])
        self.model = heat.nn.DataParallel(network, self.world, self.optimizer, MODES[mode])
        self.images, self.labels = self.input_of(self.world.rank, options.batch)

    def input_of(self, rank, batch):
        return common.make_input(self.options.model, batch, 1 + rank, self.format)

    def step(self):
        self.train(self.images, self.labels)

    def train(self, images, labels):
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad()  # before the forward pass, eval() would apply the last gradient but one once more
        loss.backward()
        self.optimizer.step()
        loss.item()

    def error(self, steps=3):
        """How far off parameters are from those that PyTorch trains alone on the batches of all ranks, short ones.

        In proportion to what training changes at all, as a few steps change little.
        """
        serial = common.NETWORKS[self.options.model]()
        serial.load_state_dict(self.model.module.state_dict())
        start = [value.detach().clone() for value in serial.parameters()]
        sgd = torch.optim.SGD(serial.parameters(), lr=0.001, momentum=0.9)
        parts = [self.input_of(rank, min(self.options.batch, 16)) for rank in range(self.world.size)]
        for _ in range(steps):
            sgd.zero_grad()
            for images, labels in parts:  # one by one: a batch norm normalises a rank's batch
                (nn.functional.cross_entropy(serial(images), labels) / len(parts)).backward()
            sgd.step()
            self.train(*parts[self.world.rank])
        self.model.eval()  # applies the update that is still under way
        self.model.train()
        off = largest_difference(self.model.module.parameters(), serial.parameters())
        return off / largest_difference(start, serial.parameters())

    def times(self):
        result = common.step_times(self.options, self.step)
        self.model.eval()
        return common.p50_p95(result)


def problem_of(setting, comm, MPI):
    """What is wrong on any rank, or None."""
    try:
        error = setting.error()
        text = None if error <= TOLERANCE else f"training is off by {100 * error:.0f} % after 3 steps"
    except (RuntimeError, TypeError, ValueError, AttributeError, MPI.Exception) as problem:
        text = f"{type(problem).__name__}: {problem}"
    return next((text for text in comm.allgather(text) if text), None)


def main():
    parser = common.make_parser(__doc__.splitlines()[0], list(common.NETWORKS))
    parser.add_argument("--mode", choices=list(MODES), help="both, one after the other")
    options = parser.parse_args()
    heat, MPI = import_heat()
    torch.set_num_threads(options.threads)
    comm = MPI.COMM_WORLD
    results, left_out = {}, {}
    for mode, format_name in itertools.product([options.mode] if options.mode else MODES, common.formats_of(options)):
        name = mode + "+" + format_name
        setting = Setting(heat, options, mode, format_name)
        problem = problem_of(setting, comm, MPI)
        if problem:
            left_out[name] = problem
            continue
        results[name] = [comm.allreduce(value, MPI.MAX) for value in setting.times()]
    if comm.rank != 0:
        return
    if not results:
        sys.exit(f"error: {'; '.join(left_out.values())}")
    common.tell(options, f"HeAT {heat.__version__} on PyTorch {torch.__version__}", comm.size, results,
                left_out=left_out)


if __name__ == "__main__":
    main()
