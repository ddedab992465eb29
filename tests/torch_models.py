#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Compares the example networks with PyTorch's of the same names, over safetensors files both ways.

usage: torch_models.py PROBE MODEL...     prints TAP; PROBE is the program model_probe
"""
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections import OrderedDict

import torch
from torch import nn

DTYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
TOLERANCE = 2e-5  # of the largest logit: float32 sums in another order, some 20 layers of them


# The package's functions, for machines without it.
def save_file(tensors, path):
    header, data = {}, b""
    for name, t in tensors.items():
        raw = bytes(t.contiguous().reshape(-1).numpy().tobytes())
        header[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def load_file(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = bytearray(f.read())
    header.pop("__metadata__", None)
    return {name: torch.frombuffer(data, dtype=DTYPES[t["dtype"]], offset=t["data_offsets"][0],
                                   count=max(1, torch.Size(t["shape"]).numel())).reshape(t["shape"])
            for name, t in header.items()}


try:
    from safetensors.torch import load_file, save_file  # noqa: F811
except ImportError:
    pass


# ---- Networks ------------------------------------------------------------------------------------

def sequence(*layers):
    return nn.Sequential(OrderedDict((name or f"relu{i}", layer) for i, (name, layer) in enumerate(layers)))


def mlp(shape, classes):
    c, h, w = shape
    return sequence(("flatten", nn.Flatten()), ("fc1", nn.Linear(c * h * w, 512)), ("", nn.ReLU()),
                    ("fc2", nn.Linear(512, 512)), ("", nn.ReLU()), ("fc3", nn.Linear(512, classes)))


def cnn(shape, classes):
    c, h, w = shape
    flat = 64 * ((h - 4) // 2) * ((w - 4) // 2)
    return sequence(("conv1", nn.Conv2d(c, 32, 3)), ("", nn.ReLU()), ("conv2", nn.Conv2d(32, 64, 3)),
                    ("", nn.ReLU()), ("pool", nn.MaxPool2d(2)), ("flatten", nn.Flatten()),
                    ("fc1", nn.Linear(flat, 128)), ("", nn.ReLU()), ("fc2", nn.Linear(128, classes)))


def lenet(shape, classes):
    c, h, w = shape
    size = lambda n: ((n - 4) // 2 - 4) // 2
    return sequence(("conv1", nn.Conv2d(c, 6, 5)), ("", nn.ReLU()), ("pool1", nn.MaxPool2d(2)),
                    ("conv2", nn.Conv2d(6, 16, 5)), ("", nn.ReLU()), ("pool2", nn.MaxPool2d(2)),
                    ("flatten", nn.Flatten()), ("fc1", nn.Linear(16 * size(h) * size(w), 120)), ("", nn.ReLU()),
                    ("fc2", nn.Linear(120, 84)), ("", nn.ReLU()), ("fc3", nn.Linear(84, classes)))


class Block(nn.Module):
    """torchvision's BasicBlock, with its names."""
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                            nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (self.downsample(x) if self.downsample else x))


class Bottleneck(nn.Module):
    """torchvision's, with its names: the stride is in the second convolution."""
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        width = outputs // 4
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                            nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))
        return torch.relu(self.bn3(self.conv3(y)) + (self.downsample(x) if self.downsample else x))


class ResNet(nn.Module):
    def __init__(self, shape, classes, block, blocks, widths):
        super().__init__()
        large = min(shape[1:]) >= 64
        self.conv1 = nn.Conv2d(shape[0], 64, 7 if large else 3, 2 if large else 1, 3 if large else 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        for i in range(1, 5):
            more = [block(widths[i], widths[i], 1) for _ in range(1, blocks[i - 1])]
            self.add_module(f"layer{i}", nn.Sequential(block(widths[i - 1], widths[i], 1 if i == 1 else 2), *more))
        self.fc = nn.Linear(widths[4], classes)

    def forward(self, x):
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def resnet18(shape, classes):
    return ResNet(shape, classes, Block, [2, 2, 2, 2], [64, 64, 128, 256, 512])


def resnet50(shape, classes):
    return ResNet(shape, classes, Bottleneck, [3, 4, 6, 3], [64, 256, 512, 1024, 2048])


MODELS = {"mlp": mlp, "cnn": cnn, "lenet": lenet, "resnet18": resnet18, "resnet50": resnet50}
SHAPES = {"mlp": [(1, 28, 28)], "cnn": [(1, 28, 28), (3, 32, 32)], "lenet": [(1, 28, 28), (3, 32, 32)],
          "resnet18": [(1, 28, 28), (3, 32, 32), (3, 64, 64)],
          "resnet50": [(3, 64, 64)]}


# ---- Both ways -----------------------------------------------------------------------------------

def probe(program, folder, name, x, what, path, dy=None):
    inputs, outputs = os.path.join(folder, "in"), os.path.join(folder, "out")
    save_file({"x": x} if dy is None else {"x": x, "dy": dy}, inputs)
    subprocess.run([program, name, "7", inputs, outputs, what, path], check=True)
    return load_file(outputs)["y"]


def distance(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def from_here(program, folder, name, shape, x):
    """Written here, loaded strictly into PyTorch."""
    path = os.path.join(folder, "ours")
    y = probe(program, folder, name, x, "SAVE", path)
    net = MODELS[name](shape, 7)
    net.load_state_dict(load_file(path), strict=True)
    net.eval()
    return distance(y, net(x))


def from_torch(program, folder, name, shape, x):
    """Written by PyTorch, loaded strictly here."""
    path = os.path.join(folder, "theirs")
    net = MODELS[name](shape, 7)
    net.train()
    net(x)  # fills running statistics
    save_file(net.state_dict(), path)
    net.eval()
    return distance(probe(program, folder, name, x, "LOAD", path), net(x))


def optimizer_state(d, net):
    """Of torch.optim.AdamW, from a file of iso_optimizer_state_dict."""
    group = {key: d[f"param_groups.0.{key}"].item() for key in ("lr", "eps", "weight_decay", "beta1", "beta2")}
    names = [name for name, _ in net.named_parameters()]
    state = {i: {key: d[f"state.{name}.{key}"] for key in ("step", "exp_avg", "exp_avg_sq")}
             for i, name in enumerate(names)}
    return {"state": state,
            "param_groups": [dict(torch.optim.AdamW(net.parameters()).state_dict()["param_groups"][0],
                                  lr=group["lr"], eps=group["eps"], weight_decay=group["weight_decay"],
                                  betas=(group["beta1"], group["beta2"]))]}


def optimizer_from_here(program, folder, name, shape, x):
    """Model and AdamW written here make the same next step in PyTorch."""
    path = os.path.join(folder, "trained")
    dy = torch.randn(len(x), 7) / len(x)
    y = probe(program, folder, name, x, "TRAIN", path, dy)
    net = MODELS[name](shape, 7)
    net.load_state_dict(load_file(path), strict=True)
    before = net(x)
    optimizer = torch.optim.AdamW(net.parameters())
    optimizer.load_state_dict(optimizer_state(load_file(path + ".optimizer"), net))
    with torch.enable_grad():
        net(x).backward(dy)
    optimizer.step()
    return distance(y - before, net(x) - before)


def main():
    program, names = sys.argv[1], sys.argv[2:]
    torch.manual_seed(3)
    torch.set_num_threads(1)
    count = failed = 0
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for name in names:
            for shape in SHAPES[name]:
                x = torch.randn(6, *shape)
                ways = [from_here, from_torch] + [optimizer_from_here] * (name == "mlp")
                for way in ways:
                    apart = way(program, folder, name, shape, x)
                    good = apart <= TOLERANCE
                    count, failed = count + 1, failed + (not good)
                    print(f"{'ok' if good else 'not ok'} - {name} {'x'.join(map(str, shape))}: {way.__doc__} "
                          f"Logits differ by {apart:.1e}.", flush=True)
    print(f"1..{count}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
