#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains with EXO Gym as Isotherm's train does, and compares the two: the programs of docs/studies/exo-gym.md.

    exo-gym.py theirs MNIST_FOLDER RUN_FOLDER --mode diloco --seed 3   one run with EXO Gym
    exo-gym.py copies MNIST_FOLDER FOLDER   data that are the same on all nodes, and initial parameters for train --load
    exo-gym.py rates TRAIN_LOG RUN_FOLDER   whether train (--eval-every 1) and EXO Gym had the same learning rates
    exo-gym.py runs OUT_FOLDER              all runs in the folder as CSV
    exo-gym.py tables RUNS.csv              the tables of the study

It needs Python 3.9, and for `theirs` and `copies` PyTorch 2.x and EXO Gym.
"""
import argparse
import csv
import gzip
import json
import math
import os
import shutil
import statistics
import struct
import sys
import time

NODES, STEPS, BATCH, PERIOD = 4, 150, 256, 20
LR, WEIGHT_DECAY, WARMUP = 3e-4, 1e-4, 100
MEAN, STD = 0.1307, 0.3081
COLUMNS = ["system", "mode", "network", "seed", "test_loss", "test_accuracy", "seconds", "seconds_all"]

try:
    import torch
    from torch import nn
    import exogym.trainer
    from exogym.strategy.diloco import DiLoCoStrategy
    from exogym.strategy.federated_averaging import FedAvgStrategy
    from exogym.strategy.optim import OptimSpec
    from exogym.strategy.strategy import SimpleReduceStrategy
except ImportError as problem:
    if sys.argv[1:2] in (["theirs"], ["copies"]):
        sys.exit(f"exo-gym.py: {problem}: run it with a Python that has PyTorch and EXO Gym")
else:

    def join_group(backend, rank, world_size, retries=1):
        """In place of EXO Gym's, which gives gloo macOS's name of the loopback interface, lo0."""
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.distributed.init_process_group(backend, rank=rank, world_size=world_size)

    if sys.platform == "linux":
        exogym.trainer.init_process_group_portsafe = join_group  # here, because each node imports this file anew

    # ---- Network and data, as in train ------------------------------------------------------------------------------

    def make_mlp():
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                             nn.Linear(512, 10))

    def make_cnn():
        return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
                             nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))

    NETWORKS = {"mlp": make_mlp, "cnn": make_cnn}

    class WithLoss(nn.Module):
        """EXO Gym's models return their loss."""

        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, batch):
            images, labels = batch
            return nn.functional.cross_entropy(self.network(images), labels)

    IMAGES, LABELS = "images-idx3-ubyte.gz", "labels-idx1-ubyte.gz"

    def read_idx(folder, name):
        with gzip.open(os.path.join(folder, name)) as file:
            return bytearray(file.read())

    def read_mnist(folder, part):
        pixels = torch.frombuffer(read_idx(folder, f"{part}-{IMAGES}")[16:], dtype=torch.uint8).view(-1, 1, 28, 28)
        labels = torch.frombuffer(read_idx(folder, f"{part}-{LABELS}")[8:], dtype=torch.uint8)
        return (pixels.float() / 255 - MEAN) / STD, labels.long()

    class Shuffled(torch.utils.data.Dataset):
        """Samples in an order drawn with the seed: another one in each epoch, or, `fixed`, always the first one.

        EXO Gym's sampler has the same order for every seed and in every epoch. It maps to this order.
        """

        def __init__(self, images, labels, seed, fixed):
            self.images, self.labels, self.seed, self.fixed = images, labels, seed, fixed
            self.served, self.epoch, self.order = 0, -1, None

        def __len__(self):
            return len(self.labels)

        def __getitem__(self, i):
            epoch = 0 if self.fixed else self.served // (len(self) // NODES)
            if epoch != self.epoch:
                generator = torch.Generator().manual_seed(1000 * self.seed + epoch)
                self.epoch, self.order = epoch, torch.randperm(len(self), generator=generator).tolist()
            self.served += 1
            return self.images[self.order[i]], self.labels[self.order[i]]

    # ---- Strategies: EXO Gym's own, which tell their rates and times ------------------------------------------------

    def make_schedule(optimizer):
        """--warmup-lr-steps 100 --schedule cosine"""
        schedule = torch.optim.lr_scheduler
        return schedule.SequentialLR(optimizer, [schedule.LinearLR(optimizer, 1 / 3, total_iters=WARMUP),
                                                 schedule.CosineAnnealingLR(optimizer, STEPS - WARMUP)], [WARMUP])

    class Observed:
        """A strategy that writes rates and seconds of its steps to a file, and makes train's exchanges: after steps 20,
        40, ... EXO Gym makes them one step later because it counts from 0; `late` leaves it so."""

        late = False

        def _init_node(self, model, rank, num_nodes):
            super()._init_node(model, rank, num_nodes)
            self.local_step = 0 if self.late else 1
            self.rates, self.began = [], None

        def zero_grad(self):
            if self.began is None:
                self.began = time.monotonic()
            super().zero_grad()

        def step(self):
            self.rates.append(self.optim.param_groups[0]["lr"])
            super().step()
            if len(self.rates) == STEPS and self.rank == 0:
                with open("steps.json", "w") as file:
                    json.dump({"seconds": time.monotonic() - self.began, "rates": self.rates}, file)

    class Ddp(Observed, SimpleReduceStrategy):
        pass

    class FedAvg(Observed, FedAvgStrategy):
        pass

    class DiLoCo(Observed, DiLoCoStrategy):
        pass

    class DiLoCoLate(DiLoCo):
        late = True

    class DiLoCoCopied(DiLoCo):
        """On a CPU, EXO Gym's rank 0 goes on to train in the memory of the outer parameters. Here it has its own."""

        def _communicate(self):
            super()._communicate()
            for parameter in self.model.parameters():
                parameter.data = parameter.data.clone()

    STRATEGIES = {"ddp": Ddp, "fedavg": FedAvg, "diloco": DiLoCo, "diloco-late": DiLoCoLate,
                  "diloco-copied": DiLoCoCopied}

    # ---- A run ------------------------------------------------------------------------------------------------------

    def evaluate(model, images, labels):
        model.eval()
        loss = hits = 0
        with torch.no_grad():
            for part, truth in zip(images.split(1000), labels.split(1000)):
                logits = model.network(part)
                loss += nn.functional.cross_entropy(logits, truth, reduction="sum").item()
                hits += (logits.argmax(1) == truth).sum().item()
        return loss / len(labels), hits / len(labels)

    def run_theirs(options):
        began = time.monotonic()
        train, test = (read_mnist(os.path.abspath(options.data), part) for part in ("train", "t10k"))
        os.makedirs(options.folder, exist_ok=True)
        os.chdir(options.folder)
        torch.manual_seed(options.seed)
        model = WithLoss(NETWORKS[options.network]())
        trainer = exogym.trainer.Trainer(model, Shuffled(*train, options.seed, options.fixed_order),
                                         torch.utils.data.TensorDataset(*test), device="cpu",
                                         start_port=options.port)
        # FedAvgStrategy hands its inner_optim to a base class that ignores it. That class takes optim_spec.
        strategy = STRATEGIES[options.mode](optim_spec=OptimSpec(torch.optim.AdamW, lr=LR, weight_decay=WEIGHT_DECAY),
                                            H=PERIOD, lr_scheduler=make_schedule)
        model = trainer.fit(num_epochs=5, max_steps=STEPS, strategy=strategy, num_nodes=NODES, batch_size=BATCH,
                            minibatch_size=BATCH, val_size=len(test[1]), val_interval=STEPS, run_name="run",
                            seed=options.seed)
        loss, accuracy = evaluate(model, *test)
        with open("steps.json") as file:
            seconds = json.load(file)["seconds"]
        mode = options.mode + ("-fixed-order" if options.fixed_order else "")
        row = ["EXO Gym", mode, options.network, options.seed, loss, accuracy, seconds, time.monotonic() - began]
        with open("run.json", "w") as file:
            json.dump(dict(zip(COLUMNS, row)), file)

    # ---- All samples the same: nodes take the same steps, so that both systems must end with the same parameters ----

    def write_parameters(network, path):
        """As safetensors, with train's names of mlp."""
        tensors = [(f"fc{1 + i // 2}.{('weight', 'bias')[i % 2]}", value) for i, value
                   in enumerate(network.state_dict().values())]
        header, at = {}, 0
        for name, value in tensors:
            header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, at + 4 * value.numel()]}
            at += 4 * value.numel()
        text = json.dumps(header).encode()
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for _, value in tensors:
                file.write(value.numpy().tobytes())

    def write_copies(options):
        os.makedirs(options.folder, exist_ok=True)
        for name, header, size in ((IMAGES, 16, 784), (LABELS, 8, 1)):
            shutil.copy(os.path.join(options.data, f"t10k-{name}"), options.folder)
            content = read_idx(options.data, f"train-{name}")
            with gzip.open(os.path.join(options.folder, f"train-{name}"), "wb", 1) as file:
                file.write(content[:header] + content[header:header + size] * ((len(content) - header) // size))
        torch.manual_seed(1)
        write_parameters(make_mlp(), os.path.join(options.folder, "init.safetensors"))


# ---- Runs of both systems -------------------------------------------------------------------------------------------


def read_log(path, event):
    with open(path) as file:
        return [line for line in map(json.loads, file) if line["event"] == event]


def check_rates(options):
    ours = [line["lr"] for line in read_log(options.log, "eval")]
    with open(os.path.join(options.folder, "steps.json")) as file:
        theirs = json.load(file)["rates"]
    apart = max((abs(a / b - 1) for a, b in zip(ours, theirs)), default=math.inf)
    print(f"learning rates: {len(ours)} and {len(theirs)} steps, at most {apart:.1g} of the rate apart")
    if len(ours) != len(theirs) or apart > 1e-6:
        sys.exit("exo-gym.py: the learning rates are not the same")


def our_row(folder):
    _, network, mode, seed = os.path.basename(folder).split("_")
    end = read_log(os.path.join(folder, "log.jsonl"), "summary")[-1]
    with open(os.path.join(folder, "seconds")) as file:
        seconds_all = float(file.read())
    return dict(zip(COLUMNS, ["Isotherm", mode, network, int(seed), end["test_loss"], end["test_accuracy"],
                              end["seconds"], seconds_all]))


def print_runs(options):
    rows = []
    for entry in sorted(os.listdir(options.folder)):
        folder = os.path.join(options.folder, entry)
        if os.path.exists(os.path.join(folder, "run.json")):
            with open(os.path.join(folder, "run.json")) as file:
                rows.append(json.load(file))
        elif entry.startswith("ours_") and os.path.exists(os.path.join(folder, "seconds")):
            rows.append(our_row(folder))
    rows.sort(key=lambda row: [row[key] for key in ("network", "mode", "system", "seed")])
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(COLUMNS)
    for row in rows:
        out.writerow([f"{row[key]:.6g}" if isinstance(row[key], float) else row[key] for key in COLUMNS])


# ---- Statistics -----------------------------------------------------------------------------------------------------


def t_tail(t, df):
    """The probability that Student's t exceeds t, by Simpson's rule over the angle whose tangent is t / sqrt(df)."""
    steps, top = 2000, math.atan(t / math.sqrt(df))
    height = [math.cos(top * i / steps) ** (df - 1) for i in range(steps + 1)]
    area = (height[0] + height[-1] + 4 * sum(height[1:-1:2]) + 2 * sum(height[2:-1:2])) * top / steps / 3
    return 0.5 - area * math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi)


def t_quantile(df):
    """Which t exceeds the others with a probability of 97.5 %."""
    low, high = 0.0, 100.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, df) > 0.025 else (low, middle)
    return low


def interval(values):
    """Mean and half of its 95 % interval."""
    return statistics.mean(values), t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def welch(ours, theirs):
    """Difference of the means, half of its 95 % interval, and the p value (two-sided), by Welch's t test."""
    parts = [statistics.variance(values) / len(values) for values in (ours, theirs)]
    df = sum(parts) ** 2 / sum(part ** 2 / (len(values) - 1) for part, values in zip(parts, (ours, theirs)))
    difference, error = statistics.mean(ours) - statistics.mean(theirs), math.sqrt(sum(parts))
    return difference, t_quantile(df) * error, max(0.0, 2 * t_tail(abs(difference) / error, df))


def print_table(rows, network):
    """A line for each mode of EXO Gym, beside Isotherm's mode of the same name up to the first dash."""
    values = {}
    for row in rows:
        if row["network"] == network:
            run = [float(row[key]) for key in ("test_loss", "test_accuracy", "seconds", "seconds_all")]
            values.setdefault((row["system"], row["mode"]), []).append(run)
    print(f"\n{network}:\n\n| mode | seeds | EXO Gym | Isotherm | difference | p | inside | accuracy |"
          " seconds of steps | seconds in all |\n" + "|---" * 10 + "|")
    for (system, mode), runs in sorted(values.items()):
        ours = list(zip(*values.get(("Isotherm", mode.split("-")[0]), [])))
        if system == "Isotherm" or not ours or min(len(ours[0]), len(runs)) < 2:
            continue
        theirs = list(zip(*runs))
        (a, a_half), (b, b_half) = interval(theirs[0]), interval(ours[0])
        difference, half, p = welch(ours[0], theirs[0])
        pairs = [f"{statistics.mean(t):{form}}, {statistics.mean(o):{form}}"
                 for t, o, form in zip(theirs[1:], ours[1:], (".2%", ".1f", ".1f"))]
        print(f"| {mode} | {len(runs)}, {len(ours[0])} | {a:.4f} ± {a_half:.4f} | {b:.4f} ± {b_half:.4f} |"
              f" {difference:+.4f} ± {half:.4f} | {p:.2g} | {'yes' if abs(b - a) <= a_half else 'no'} |"
              f" {' | '.join(pairs)} |")


def print_tables(options):
    with open(options.runs, newline="") as file:
        rows = list(csv.DictReader(file))
    for network in sorted({row["network"] for row in rows}):
        print_table(rows, network)


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    theirs = commands.add_parser("theirs")
    theirs.add_argument("data")
    theirs.add_argument("folder")
    theirs.add_argument("--mode", choices=["ddp", "fedavg", "diloco", "diloco-late", "diloco-copied"], required=True)
    theirs.add_argument("--network", choices=["mlp", "cnn"], default="mlp")
    theirs.add_argument("--seed", type=int, default=1)
    theirs.add_argument("--fixed-order", action="store_true", help="every epoch has the order of the first one")
    theirs.add_argument("--port", type=int, default=12355, help="where nodes meet")
    copies = commands.add_parser("copies")
    copies.add_argument("data")
    copies.add_argument("folder")
    rates = commands.add_parser("rates")
    rates.add_argument("log")
    rates.add_argument("folder")
    commands.add_parser("runs").add_argument("folder")
    commands.add_parser("tables").add_argument("runs")
    return parser.parse_args()


def main():
    options = read_options()
    if options.command in ("theirs", "copies"):
        (run_theirs if options.command == "theirs" else write_copies)(options)
    else:
        {"rates": check_rates, "runs": print_runs, "tables": print_tables}[options.command](options)


if __name__ == "__main__":
    main()
