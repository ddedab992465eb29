# SPDX-License-Identifier: MIT
"""Tables and plot of bench_peers.py: results.md, results.csv, and ratios.svg by gnuplot."""
import csv
import os
import shutil
import statistics
import subprocess

from bench_install import NAMES
from bench_stats import paired_ratio

OURS, OURS_PERIODIC = "isotherm", "isotherm-diloco"
REFERENCE = {OURS: None, OURS_PERIODIC: None, "exogym": OURS_PERIODIC}  # of others: OURS
TITLES = {"1rank": "1 rank", "2ranks": "2 ranks on one node", "1gbit": "2 emulated hosts at 1 Gbit/s",
          "100mbit": "2 emulated hosts at 100 Mbit/s"}
FIELDS = ["setting", "model", "batch", "program", "version", "chosen", "steps", "turns", "median_ms", "ratio", "low",
          "high", "failed"]


def name_setting(chosen, model):
    """As a table calls it; the layout of a network without images is none."""
    words = [NAMES[key](value) for key, value in chosen.items() if not (model == "mlp" and key == "layout")]
    return ", ".join(word for word in words if word)


def version_of(samples, cell, name):
    lines = [line["told"].get("peer", "") for line in samples.of_kind("turn", cell=list(cell), peer=name)]
    return lines[-1] if lines else ""


def row_of(samples, cell, name, by_program):
    """One line of results.csv."""
    plan = samples.plan(cell)
    chosen = plan[0].get(name) if plan else None
    row = dict.fromkeys(FIELDS, "")
    row.update(zip(FIELDS[:4], (*cell, name)), version=version_of(samples, cell, name),
               chosen=name_setting(chosen, cell[1]) if chosen else "", failed=samples.failure(cell, name) or "")
    if name in by_program:
        row.update(steps=plan[1], turns=len(by_program[name]), median_ms=round(statistics.median(by_program[name]), 4))
        reference = by_program.get(REFERENCE.get(name, OURS))
        if reference:
            ends = paired_ratio(reference, by_program[name])
            row.update(zip(("ratio", "low", "high"), ("" if end is None else float(f"{end:.4g}") for end in ends)))
    return row


def rows_of(samples, turns):
    result = []
    for cell in samples.cells():
        by_program = samples.by_program(cell, turns)
        plan = samples.plan(cell)
        failed = [line["peer"] for line in samples.of_kind("failure", cell=list(cell))]
        names = dict.fromkeys([OURS, *(plan[0] if plan else []), *by_program, *failed])
        rows = [row_of(samples, cell, name, by_program) for name in names]
        result += [row for row in rows if row["failed"] or row["median_ms"] != ""]
    return result


# ---- Pages --------------------------------------------------------------------------------------------------


def escape(text):
    return str(text).replace("|", "\\|")


def header(samples, turns):
    yield "# A training step, against other libraries"
    yield ""
    for session in samples.of_kind("session"):
        known = {key: value for key, value in session.items() if value is not None and key not in ("kind", "command")}
        yield "- " + ", ".join(f"{key}: {value}" for key, value in known.items())
        yield f"  (`{session['command']}`)"
    yield ""
    yield (f"{turns} turns, fixed beforehand; programs alternate. A turn gives the median step of the slowest rank. "
           "Times are medians of the turns. The ratio is Isotherm's time over the other's: the geometric mean over "
           "paired turns, with its 95 % interval (Student's t on logarithms). Under 1, Isotherm is faster. DiLoCo (a "
           "step is the mean of 8, with their exchange of parameters) is compared with DiLoCo. A peer's setting won "
           "short trials for that network, batch and number of ranks. Isotherm: defaults, the same threads.")


def program_table(labels, versions):
    yield ""
    yield "| program | version, or why it is left out |"
    yield "|---|---|"
    for name, line in labels.items():
        yield f"| {line['label']} | {escape(line.get('failed') or versions.get(name) or '')} |"


def numbers(row):
    if row["failed"]:
        return f"{escape(row['failed'])} | | "
    interval = f"{row['low']:.3g} to {row['high']:.3g}" if row["low"] != "" else ""
    ratio = f"{row['ratio']:.3g}" if row["ratio"] != "" else ""
    return f"{row['median_ms']:.4g} ms | {ratio} | {interval}"


def setting_table(setting, rows, labels):
    yield ""
    yield f"## {TITLES[setting]}"
    yield ""
    yield "| network | batch | program | setting | step | ratio | 95 % interval |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        label = labels.get(row["program"], {}).get("label", row["program"])
        yield f"| {row['model']} | {row['batch']} | {label} | {row['chosen']} | {numbers(row)} |"


def page(samples, turns, rows):
    labels = {line["peer"]: line for line in samples.of_kind("peer")}
    sessions = samples.of_kind("session")
    versions = {row["program"]: row["version"] for row in rows if row["version"]}
    versions[OURS] = versions[OURS_PERIODIC] = sessions[-1].get("isotherm") if sessions else ""
    yield from header(samples, turns)
    yield from program_table(labels, versions)
    for setting in TITLES:
        of_setting = [row for row in rows if row["setting"] == setting]
        if of_setting:
            yield from setting_table(setting, of_setting, labels)


# ---- Plot ---------------------------------------------------------------------------------------------------


def plot_data(rows, names, cells, setting):
    """A block of lines for each program: place, ratio, low, high."""
    for number, name in enumerate(names):
        yield f"# {name}"
        for place, (model, batch) in enumerate(cells):
            for row in rows:
                if (row["setting"], row["model"], row["batch"], row["program"]) != (setting, model, batch, name):
                    continue
                if row["ratio"] != "":
                    ends = [end if end != "" else row["ratio"] for end in (row["low"], row["high"])]
                    shift = (number - (len(names) - 1) / 2) * 0.8 / len(names)
                    yield f"{place + shift:.3f} {row['ratio']} {ends[0]} {ends[1]}"
        yield "NaN NaN NaN NaN\n\n"


def plot_script(settings, names, cells):
    ticks = ", ".join(f'"{model} {batch}" {place}' for place, (model, batch) in enumerate(cells))
    yield f"set terminal svg size 900,{40 + 260 * len(settings)} background rgb 'white'"
    yield "set output 'ratios.svg'"
    yield f"set multiplot layout {len(settings)},1"
    yield "set logscale y 2; set grid y; set ylabel 'Isotherm / other'; set key outside right noenhanced"
    yield f"set xtics ({ticks}); set xrange [-0.5:{len(cells) - 0.5}]; set yrange [*<0.5:1<*]"
    for setting in settings:
        yield f"set title '{TITLES[setting]}'"
        parts = [f"'ratios-{setting}.dat' index {i} using 1:2:3:4 with yerrorbars pt 7 title '{name}'"
                 for i, name in enumerate(names)]
        yield "plot 1 with lines dt 2 lc 'black' notitle, " + ", ".join(parts)
    yield "unset multiplot"


def plot(folder, rows, labels):
    """Left out where no ratio is known; without gnuplot its script stays there."""
    compared = [row for row in rows if row["ratio"] != ""]
    settings = [setting for setting in TITLES if any(row["setting"] == setting for row in compared)]
    if not settings:
        return
    names = list(dict.fromkeys(row["program"] for row in compared))
    cells = list(dict.fromkeys((row["model"], row["batch"]) for row in compared))
    shown = [labels.get(name, {}).get("label", name) for name in names]
    for setting in settings:
        save(os.path.join(folder, f"ratios-{setting}.dat"), plot_data(compared, names, cells, setting))
    save(os.path.join(folder, "ratios.gp"), plot_script(settings, shown, cells))
    if shutil.which("gnuplot"):
        subprocess.run(["gnuplot", "ratios.gp"], cwd=folder, check=False, timeout=60)


# ---- All ----------------------------------------------------------------------------------------------------


def save(path, lines):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)


def write(folder, samples, turns):
    rows = rows_of(samples, turns)
    with open(os.path.join(folder, "results.csv"), "w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    save(os.path.join(folder, "results.md"), page(samples, turns, rows))
    plot(folder, rows, {line["peer"]: line for line in samples.of_kind("peer")})
