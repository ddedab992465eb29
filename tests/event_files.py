#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares the event files of a folder with the JSON log of the same run: event_files.py FOLDER LOG

Reads the files as they are documented: TFRecord, with Event and Summary of protocol buffers. Says what differs, and
then ends with status 1. Without differences it prints the number of files, of values, and of restarts. If the module
tensorboard is there, the values that TensorBoard's own reader finds must be those, too.
"""
import glob
import json
import struct
import sys

SETTINGS = "ranks nodes parameters batch accumulate lr test_images seed threads".split()
EVENTS = "epoch eval sync policy noise_scale summary".split()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def check(data, masked):
    crc = crc32c(data)
    if ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF != masked:
        sys.exit("a checksum is wrong")


def records(path):
    data = open(path, "rb").read()
    at = 0
    while at < len(data):
        size, head = struct.unpack_from("<QI", data, at)
        check(data[at : at + 8], head)
        record = data[at + 12 : at + 12 + size]
        check(record, struct.unpack_from("<I", data, at + 12 + size)[0])
        yield record
        at += 16 + size


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire == 2:
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            size = {1: 8, 5: 4}[wire]
            value, at = struct.unpack_from({1: "<d", 5: "<f"}[wire], data, at)[0], at + size
        yield key >> 3, value


def read_folder(folder):
    """The number of files and of restarts, and (tag, step, value) of all files; texts count as values."""
    values, restarts = [], 0
    paths = sorted(glob.glob(folder + "/events.out.tfevents.*"))
    for path in paths:
        for number, record in enumerate(records(path)):
            event = dict(fields(record))
            step = event.get(2, 0)
            if (event.get(3) == b"brain.Event:2") != (number == 0):
                sys.exit(path + " does not begin with its version")
            if 7 in event:
                restarts += 1
                values = [v for v in values if v[1] < step]
            for _, summary in fields(event.get(5, b"")):
                value = dict(fields(summary))
                values.append((value[1].decode(), step, value.get(2, "text")))
    return len(paths), restarts, values


def read_log(path):
    """What the event files should have."""
    values, resumed = [], False
    for line in open(path):
        event = json.loads(line)
        name = event.pop("event")
        # The steps of an extended run that is resumed are those of its end.
        step = event.pop("steps") if "steps" in event and name != "resume" else event.pop("step", None)
        if name == "resume":
            resumed = True
            values = [v for v in values if v[1] <= step]
        for key, value in event.items():
            left_out = key in SETTINGS if name == "summary" else key == "epoch"
            if name in EVENTS and not left_out and isinstance(value, (int, float)):
                values.append((name + "/" + key, step, struct.unpack("<f", struct.pack("<f", value))[0]))
    return values, resumed


def compare(what, got, wanted):
    got, wanted = sorted(got), sorted(wanted)
    if got != wanted:
        missing, extra = [v for v in wanted if v not in got], [v for v in got if v not in wanted]
        sys.exit(f"{what}: not in the files: {missing[:3]}, not in the log: {extra[:3]}")


def read_by_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    if reader.Tags()["tensors"] != ["settings"]:
        sys.exit("TensorBoard finds no text of the settings")
    text = reader.Tensors("settings")[0].tensor_proto.string_val[0].decode()
    if "\n    --model " not in text:
        sys.exit("TensorBoard finds another text of the settings")
    return [(tag, p.step, p.value) for tag in reader.Tags()["scalars"] for p in reader.Scalars(tag)]


files, restarts, found = read_folder(sys.argv[1])
logged, resumed = read_log(sys.argv[2])
numbers = [v for v in found if v[2] != "text"]
compare("this reader", numbers, logged)
if [v[0] for v in found if v[2] == "text"] != ["settings"] * files:
    sys.exit("not one text of the settings for each file")
try:
    import tensorboard  # noqa: F401
except ImportError:
    print("# no module tensorboard: its reader was not asked", file=sys.stderr)
else:
    compare("TensorBoard", read_by_tensorboard(sys.argv[1]), logged)
print(files, len(numbers), restarts)
