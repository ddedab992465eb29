#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tells what a training step on a GPU consists of, from what kernel_times.c wrote.

    python3 kernel_steps.py [--most N (40)] FILE...

Takes the last kernels that repeat, the period of the program, as one step (two where steps take turns with two
losses), and prints its span, the time in which kernels ran, and the kernels by their share of it.
"""
import argparse
import subprocess


def read(path):
    """(start, duration, in a graph, grid, registers, name) of each kernel, in order of start."""
    rows = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            field = line.rstrip("\n").split(" ", 8)
            if len(field) == 9:
                rows.append((float(field[0]), float(field[1]), field[2] == "1", field[4], field[6], field[8]))
    return sorted(rows)


def period(names):
    for count in range(3, len(names) // 2 + 1):
        if names[-count:] == names[-2 * count:-count]:
            return count
    return 0


def demangled(names):
    try:
        done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
        return dict(zip(names, done.stdout.split("\n")))
    except (OSError, subprocess.CalledProcessError):
        return {name: name for name in names}


def tell(path, most):
    rows = read(path)
    if any(row[2] for row in rows):
        rows = [row for row in rows if row[2]]
    count = period([row[5] for row in rows])
    if not count:
        print(f"{path}: {len(rows)} kernels, which do not repeat")
        return
    step, before = rows[-count:], rows[-2 * count:-count]
    span, busy = step[0][0] - before[0][0], sum(row[1] for row in step)
    print(f"{path}: {count} kernels, {span:.1f} us, of which kernels run {busy:.1f} us")
    total = {}
    for _, duration, _, grid, registers, name in step:
        entry = total.setdefault(name, [0, 0.0, grid, registers])
        entry[0] += 1
        entry[1] += duration
    readable = demangled(list(total))
    for name, (times, us, grid, registers) in sorted(total.items(), key=lambda item: -item[1][1])[:most]:
        print(f"  {times:4d} x {us:9.2f} us {100 * us / busy:5.1f} %  grid {grid} registers {registers}  {readable[name][:110]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=40)
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    for path in options.files:
        tell(path, options.most)


if __name__ == "__main__":
    main()
