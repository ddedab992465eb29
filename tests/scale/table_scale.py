#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the tables of docs/scale.md from what runs_scale.sh has simulated.

usage: table_scale.py SERIES.jsonl [DOCUMENT]

Prints each table with its title. With DOCUMENT, replaces the tables there: each stands behind a comment
<!-- table NAME -->. The series has a run of each network on one rank, which exchanges nothing:
runs_scale.sh BUILD TABLES SERIES.jsonl NETWORK 1 1 1000 blocking
"""
import json
import math
import os
import re
import sys

SYNCS = ["blocking", "lazy", "localsgd", "diloco", "daso", "gossip"]
MODELS = ["mlp", "cnn", "resnet18", "wide"]


def read_share():
    """The share of a link's rate that is left to values."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "costs"), encoding="utf-8") as file:
        return next(float(line.split()[0].split("=")[1]) for line in file if line.startswith("payload="))


SHARE = read_share()


def read_runs(path):
    """Gives (key, run) of each line of a file."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"table_scale.py: cannot read {path}: {error}")
    for place, line in enumerate(lines, 1):
        try:
            run = json.loads(line)
            key = run["model"], run["sync"], run["ranks"], run["ranks"] // run["hosts"], run["mbit"]
            whole = math.isfinite(run["step_ms"]) and run["step_ms"] > 0 and run["parameters"] > 0
            whole = whole and run["sent_bytes_per_step"] >= 0
        except (ValueError, KeyError, TypeError, ZeroDivisionError):
            whole = False
        if not whole:
            sys.exit(f"table_scale.py: line {place} of {path} is no run of runs_scale.sh: remove it")
        yield key, run


class Series:
    """The runs of a file."""

    def __init__(self, path):
        self.runs = dict(read_runs(path))
        for model in MODELS:
            if (model, "blocking", 1, 1, 1000) not in self.runs:
                sys.exit(f"table_scale.py: {path} has no run of {model} on one rank: add it by "
                         f"runs_scale.sh BUILD TABLES {path} {model} 1 1 1000 blocking")

    def get(self, model, sync, ranks, each, mbit):
        return self.runs.get((model, sync, ranks, each, mbit))

    def kernels_ms(self, model):
        """The time of a step without exchange."""
        return self.runs[model, "blocking", 1, 1, 1000]["step_ms"]

    def places(self, model, several):
        """(Mbit/s, ranks, ranks a host), sorted. several: those for which there are runs with several ranks a host."""
        found = sorted({(mbit, ranks, each) for name, _, ranks, each, mbit in self.runs if name == model and ranks > 1})
        if not several:
            return [place for place in found if place[2] == 1]
        crowded = {place[:2] for place in found if place[2] > 1}
        return [place for place in found if place[:2] in crowded]


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def link(mbit):
    return f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit} Mbit/s"


def row(cells):
    return "| " + " | ".join(cells) + " |"


def header(cells):
    return [row(cells), "|" + "---|" * len(cells)]


def cell(series, model, sync, mbit, ranks, each):
    run = series.get(model, sync, ranks, each, mbit)
    return f"{number(run['step_ms'])} ({series.kernels_ms(model) / run['step_ms']:.2f})" if run else ""


def least_ms(series, model, mbit, ranks):
    parameters = next(run["parameters"] for key, run in series.runs.items() if key[0] == model)
    return 2 * (ranks - 1) / ranks * parameters * 4 * 8 / (mbit * 1e3 * SHARE)


def table_of_steps(series, model, several):
    lines = header(["link", "ranks", "a host" if several else "bytes need", *(f"`{sync}`" for sync in SYNCS)])
    for mbit, ranks, each in series.places(model, several):
        third = str(each) if several else number(least_ms(series, model, mbit, ranks))
        times = [cell(series, model, sync, mbit, ranks, each) for sync in SYNCS]
        lines.append(row([link(mbit), str(ranks), third, *times]))
    return lines


def megabytes(series, model, sync, ranks):
    run = series.get(model, sync, ranks, 1, 10000)
    return f"{run['sent_bytes_per_step'] / ranks / 1e6:.1f}" if run else ""


def table_of_bytes(series):
    lines = header(["network", "ranks", "`blocking`, `lazy`", *(f"`{sync}`" for sync in SYNCS[2:])])
    for model in MODELS:
        for mbit, ranks, _ in series.places(model, False):
            if mbit != 10000:
                continue
            gradients = megabytes(series, model, "lazy", ranks) or megabytes(series, model, "blocking", ranks)
            lines.append(row([model, str(ranks), gradients,
                              *(megabytes(series, model, sync, ranks) for sync in SYNCS[2:])]))
    return lines


def periods(series, model, mbit, ranks):
    daso, local = (series.get(model, sync, ranks, 1, mbit) for sync in ("daso", "localsgd"))
    if not daso and not local:
        return ""
    steps = str(math.ceil(local["exchange_ms"] / series.kernels_ms(model))) if local else "-"
    return f"{daso['wait'] if daso else '-'} / {steps}"


def table_of_periods(series):
    columns = sorted({key[2] for key in series.runs if key[3] == 1 and key[1] in ("daso", "localsgd")})
    lines = header(["network", "link", *(f"{ranks} ranks" for ranks in columns)])
    for model in MODELS:
        for mbit in sorted({place[0] for place in series.places(model, False)}):
            lines.append(row([model, link(mbit), *(periods(series, model, mbit, ranks) for ranks in columns)]))
    return lines


def all_tables(series):
    tables = {f"{model} steps": table_of_steps(series, model, False) for model in MODELS}
    tables |= {f"{model} several": table_of_steps(series, model, True) for model in MODELS[:2]}
    return {**tables, "bytes": table_of_bytes(series), "periods": table_of_periods(series)}


def replace_tables(path, tables):
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"table_scale.py: cannot read {path}: {error}")
    for name, lines in tables.items():
        place = re.compile(rf"(<!-- table {re.escape(name)} -->\n\n)(?:\|.*\n)*")
        text, count = place.subn(lambda found, lines=lines: found[1] + "\n".join(lines) + "\n", text)
        if count != 1:
            sys.exit(f"table_scale.py: {path} has {count} places for the table \"{name}\"")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__.split("\n\n")[1])
    tables = all_tables(Series(sys.argv[1]))
    if len(sys.argv) == 3:
        replace_tables(sys.argv[2], tables)
        return
    for name, lines in tables.items():
        print(f"{name}:", *lines, "", sep="\n")


if __name__ == "__main__":
    main()
