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


def step_times(options, memory_format):
    """Milliseconds of each timed step."""
    torch.manual_seed(1)
    model = {"mlp": mlp, "cnn": cnn, "resnet18": resnet18}[options.model]().to(memory_format=memory_format)
    shape = (3, 32, 32) if options.model == "resnet18" else (1, 28, 28)
    images = (torch.rand(options.batch, *shape) - 0.5).to(memory_format=memory_format)
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
    parser.add_argument("--model", choices=["mlp", "cnn", "resnet18"], default="cnn")
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
