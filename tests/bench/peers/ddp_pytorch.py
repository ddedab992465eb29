#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Trains the CNN of iso-train on MNIST with PyTorch's DistributedDataParallel (gloo) and prints JSON lines.

    mpirun -n 2 /usr/bin/python3 ddp_pytorch.py --data DIR --master 10.77.0.1 --interface eth0

Set-up: Debian 12's python3-torch (1.13, whose torch.distributed has gloo; apt-get install python3-torch) and nothing
else. Any other Python works whose torch has gloo. mpirun only starts the ranks: torch never talks to MPI.

Network, batch, optimizer, schedule, and sampling are those of iso-train with its defaults; PyTorch gets its best
setting: all data in memory and normalised beforehand, the faster memory format (measured), gradients as views of
buckets, and no thread but gloo's beside the one that computes. Evaluations are not counted in the seconds.
Rank 0 prints an "eval" event every so many steps and a "summary"; "bytes" is what a rank gave to all-reduces,
"compute_ms" a step without any exchange on all ranks at once, and "exposed_ms_per_step" what a step takes beyond it.
"""
import argparse
import gzip
import json
import os
import statistics
import struct
import time

import torch
import torch.distributed as dist
from torch import nn

PEAK_LR = 2e-3
SHARE_RISING = 0.3


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, metavar="DIR", help="folder of MNIST's four files, plain or .gz")
    parser.add_argument("--master", default="127.0.0.1", help="address of rank 0's host")
    parser.add_argument("--port", type=int, default=29511)
    parser.add_argument("--interface", default="lo", help="network interface that gloo is to use")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, help="length of the run and of its schedule, instead of --epochs")
    parser.add_argument("--max-steps", type=int, help="stop there, the schedule being that of the whole run")
    parser.add_argument("--until-accuracy", type=float, metavar="X", help="stop when an evaluation gives at least X")
    parser.add_argument("--target", type=float, default=0.985, help="accuracy whose time the summary tells")
    parser.add_argument("--eval-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", choices=["auto", "plain", "channels_last"], default="auto")
    return parser.parse_args()


# ---- Data --------------------------------------------------------------------------------------------------


def read_idx(folder, name):
    path = os.path.join(folder, name)
    try:
        with gzip.open(path + ".gz") if os.path.exists(path + ".gz") else open(path, "rb") as file:
            content = bytearray(file.read())
    except OSError as problem:
        raise SystemExit(f"error: {problem}") from None
    dims = content[3]
    shape = struct.unpack_from(f">{dims}I", content, 4)
    return torch.frombuffer(content, dtype=torch.uint8, offset=4 + 4 * dims).reshape(shape)


def read_set(folder, prefix):
    images = read_idx(folder, prefix + "-images-idx3-ubyte")
    return images.unsqueeze(1).float().div_(255), read_idx(folder, prefix + "-labels-idx1-ubyte").long()


def read_data(folder):
    """Training and test set, both normalised by the training set's mean and deviation."""
    train, test = read_set(folder, "train"), read_set(folder, "t10k")
    mean, std = train[0].mean(), train[0].std()
    for images, _ in (train, test):
        images.sub_(mean).div_(std)
    return train, test


def batches(count, options, rank, ranks, epoch):
    """Indices of each of this rank's batches: one permutation for all, filled up so that all ranks get as many."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1000 * options.seed + epoch))
    missing = -count % ranks
    return torch.cat([order, order[:missing]])[rank::ranks].split(options.batch)


# ---- Network -----------------------------------------------------------------------------------------------


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))


def step_seconds(memory_format, batch, repeats=14):
    """Median time of a step without any exchange, while the other ranks do the same; the slowest rank's."""
    model = network(0).to(memory_format=memory_format)
    optimizer = torch.optim.Adam(model.parameters())
    images = torch.rand(batch, 1, 28, 28).to(memory_format=memory_format)
    labels = torch.randint(10, (batch,))
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    median = torch.tensor(statistics.median(times[2:]))
    dist.all_reduce(median, dist.ReduceOp.MAX)
    return median.item()


FORMATS = {"plain": torch.contiguous_format, "channels_last": torch.channels_last}


def choose_format(options):
    """Name of the memory format, the faster one unless one is asked for, and what a step without exchange takes."""
    names = FORMATS if options.format == "auto" else [options.format]
    seconds = {name: step_seconds(FORMATS[name], options.batch) for name in names}
    best = min(seconds, key=seconds.get)
    return best, seconds[best]


# ---- Training ----------------------------------------------------------------------------------------------


class Run:
    """What a run consists of, and how far it is."""

    def __init__(self, options):
        self.options = options
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.train_set, self.test_set = read_data(options.data)
        self.format_name, self.compute_seconds = choose_format(options)
        self.format = FORMATS[self.format_name]
        per_epoch = len(batches(len(self.train_set[1]), options, self.rank, self.ranks, 0))
        self.total = options.steps or options.epochs * per_epoch
        self.last = min(self.total, options.max_steps or self.total)
        self.model = nn.parallel.DistributedDataParallel(network(options.seed).to(memory_format=self.format),
                                                         gradient_as_bucket_view=True)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=PEAK_LR)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=PEAK_LR, total_steps=self.total,
                                                            pct_start=SHARE_RISING)
        self.bytes_per_step = sum(4 * value.numel() for value in self.model.parameters())
        self.step, self.epoch, self.seconds = 0, 0, 0.0
        self.times, self.losses = [], []
        self.to_target = self.steps_to_target = None
        self.accuracy = self.loss = None

    def train_step(self, indices):
        images, labels = self.train_set
        began = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(self.model(images[indices].to(memory_format=self.format)), labels[indices])
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(loss.item())
        self.times.append(time.perf_counter() - began)
        self.seconds += self.times[-1]
        self.step += 1

    @torch.no_grad()
    def evaluate(self):
        """Each rank takes its part of the test set; the same loss and accuracy come out everywhere."""
        images, labels = (part[self.rank::self.ranks] for part in self.test_set)
        right = 0
        for some, wanted in zip(images.split(250), labels.split(250)):
            output = self.model.module(some.to(memory_format=self.format))
            right += (output.argmax(1) == wanted).sum().item()
        sums = torch.tensor([right, len(labels), sum(self.losses), len(self.losses)], dtype=torch.float64)
        dist.all_reduce(sums)
        self.losses.clear()
        self.accuracy, self.loss = (sums[0] / sums[1]).item(), (sums[2] / sums[3]).item()
        if self.to_target is None and self.accuracy >= self.options.target:
            self.to_target, self.steps_to_target = self.seconds, self.step

    def say(self, event, **more):
        if self.rank == 0:
            print(json.dumps({"event": event, "step": self.step, "seconds": round(self.seconds, 4),
                              "bytes": self.step * self.bytes_per_step, "train_loss": self.loss,
                              "test_accuracy": self.accuracy, **more}), flush=True)

    def done(self):
        until = self.options.until_accuracy
        return self.step >= self.last or (until is not None and (self.accuracy or 0) >= until)

    def train(self):
        while not self.done():
            for indices in batches(len(self.train_set[1]), self.options, self.rank, self.ranks, self.epoch):
                self.train_step(indices)
                if self.step % self.options.eval_every == 0 or self.step == self.last:
                    self.evaluate()
                    self.say("eval")
                    if self.done():
                        break
            self.epoch += 1

    def summarise(self):
        step_ms, compute_ms = statistics.median(self.times) * 1e3, self.compute_seconds * 1e3
        self.say("summary", steps=self.step, peer="PyTorch " + torch.__version__ + " DDP, gloo", ranks=self.ranks,
                 format=self.format_name, batch=self.options.batch, lr=PEAK_LR, seed=self.options.seed,
                 total_steps=self.total, steps_per_second=round(self.step / self.seconds, 3),
                 step_ms_p50=round(step_ms, 3), compute_ms=round(compute_ms, 3),
                 exposed_ms_per_step=round(step_ms - compute_ms, 3), bytes_per_step=self.bytes_per_step,
                 target=self.options.target, time_to_target=self.to_target, steps_to_target=self.steps_to_target)


def main():
    options = parse()
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = options.interface
    dist.init_process_group("gloo", init_method=f"tcp://{options.master}:{options.port}",
                            rank=int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)),
                            world_size=int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1)))
    run = Run(options)
    run.train()
    run.summarise()
    dist.barrier()  # rank 0 holds the store that all need to the end
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
