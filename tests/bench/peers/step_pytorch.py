#!/usr/bin/python3
"""Times the training step of bench_step's networks in PyTorch, in its best setting, and prints one JSON line."""
import argparse
import json
import statistics
import time

import torch
from torch import nn


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                         nn.Linear(512, 10))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))


def step_times(options, memory_format):
    """Milliseconds of each timed step."""
    torch.manual_seed(1)
    model = {"mlp": mlp, "cnn": cnn}[options.model]().to(memory_format=memory_format)
    images = (torch.rand(options.batch, 1, 28, 28) - 0.5).to(memory_format=memory_format)
    labels = torch.randint(10, (options.batch,))
    loss_of = nn.CrossEntropyLoss()
    sgd = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    times = []
    for i in range(options.warmup + options.steps):
        start = time.perf_counter()
        sgd.zero_grad(set_to_none=True)
        loss = loss_of(model(images), labels)
        loss.backward()
        sgd.step()
        loss.item()  # bench_step computes the value of the loss too
        if i >= options.warmup:
            times.append((time.perf_counter() - start) * 1e3)
    return sorted(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["mlp", "cnn"], default="cnn")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    settings = {"plain": torch.contiguous_format, "channels_last": torch.channels_last}
    times = {name: step_times(options, value) for name, value in settings.items()}
    best = min(times, key=lambda name: statistics.median(times[name]))
    print(json.dumps({
        "bench": "step", "peer": "PyTorch " + torch.__version__, "setting": best, "model": options.model,
        "batch": options.batch, "ranks": 1, "threads": options.threads,
        "step_ms_p50": round(statistics.median(times[best]), 3),
        "step_ms_p95": round(times[best][int(0.95 * (options.steps - 1))], 3),
    }))


main()
