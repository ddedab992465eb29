#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times the training step of bench_step's networks with Horovod's DistributedOptimizer, and prints one JSON line.

    mpirun -n 2 --bind-to none PYTHON step_horovod.py --model cnn

PYTHON has torch and horovod, built with HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_MPI=1. Horovod finds ranks and network by
MPI, so --master and --interface are not used. The input stays in memory, and what is told is the slowest rank's.
"""
import sys

sys.dont_write_bytecode = True  # next to the sources

import horovod
import horovod.torch as hvd
import step_pytorch as common
import torch


def measure(options, memory_format):
    torch.manual_seed(1)
    model = common.NETWORKS[options.model]().to(memory_format=memory_format)
    sgd = common.make_sgd(options, model.parameters())
    sgd = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    images, labels = common.make_input(options.model, options.batch, 1 + hvd.rank(), memory_format)
    if options.compile:
        model = torch.compile(model)
    times = common.step_times(options, lambda: common.train_step(model, sgd, images, labels))
    return hvd.allreduce(torch.tensor(common.p50_p95(times)), op=hvd.Max).tolist()


def main():
    parser = common.make_parser(__doc__.splitlines()[0], list(common.NETWORKS))
    common.add_kernels(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    hvd.init()
    results = {name: measure(options, layout) for name, layout in common.formats_of(options).items()}
    if hvd.rank() == 0:
        common.tell(options, f"Horovod {horovod.__version__} on PyTorch {torch.__version__}", hvd.size(), results)
    hvd.shutdown()


if __name__ == "__main__":
    main()
