#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws part of a trace that `train --trace FILE` wrote as an SVG picture.

usage: trace_svg.py TRACE OUT.svg [--rank R] [--step N] [--steps K]

Step N is found by the N-th forward of the first layer. Only Python's standard library is needed."""

import argparse
import html
import json

LANES = ["compute", "exchange", "wait", "update"]
COLOURS = {"compute": "#4c78a8", "backward": "#9ecae9", "exchange": "#f58518", "wait": "#e45756", "update": "#54a24b"}
LEFT, WIDTH, ROW, TOP = 90, 1000, 30, 34


def read(path, rank):
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    spans = [e for e in events if e["ph"] == "X" and e["pid"] == rank]
    return sorted(spans, key=lambda e: e["ts"])


def window(spans, step, steps):
    """Time range from the step-th forward of the layer that runs first, over `steps` steps."""
    first = next(e["name"] for e in spans if e["cat"] == "compute" and e["name"].endswith(" forward"))
    starts = [e["ts"] for e in spans if e["name"] == first and e["cat"] == "compute"]
    if step + steps >= len(starts):
        raise SystemExit(f"the trace holds {len(starts) - 1} whole steps: "
                         "--step plus --steps must be at most that")
    return starts[step], starts[step + steps]


def rows_of(spans):
    """Exchanges overlap one another, so each goes to the first row that is free."""
    rows = []
    for e in spans:
        for row in rows:
            if row[-1]["ts"] + row[-1]["dur"] <= e["ts"]:
                row.append(e)
                break
        else:
            rows.append([e])
    return rows or [[]]


def rectangle(e, t0, scale, y):
    kind = "backward" if e["name"].endswith(" backward") else e["cat"]
    x, w = LEFT + (e["ts"] - t0) * scale, max(e["dur"] * scale, 0.7)
    label = html.escape(e["name"].replace(" backward", "").replace(" forward", ""))
    title = f'<title>{html.escape(e["name"])}: {e["dur"] / 1000:.2f} ms</title>'
    out = f'<rect x="{x:.1f}" y="{y}" width="{w:.1f}" height="{ROW - 8}" rx="2" fill="{COLOURS[kind]}">{title}</rect>'
    if w > 7 * len(label):
        out += f'<text x="{x + w / 2:.1f}" y="{y + 15}" text-anchor="middle" fill="#fff">{label}</text>'
    return out


def axis(t0, t1, scale, bottom):
    length = (t1 - t0) / 1000
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10000) if length / s <= 14)
    out = []
    for ms in range(0, int(length) + 1, step):
        x = LEFT + ms * 1000 * scale
        out.append(f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>')
        out.append(f'<text x="{x:.1f}" y="{TOP - 12}" text-anchor="middle" fill="#555">{ms} ms</text>')
    return out


def draw(spans, t0, t1):
    scale = WIDTH / (t1 - t0)
    inside = [e for e in spans if e["ts"] + e["dur"] > t0 and e["ts"] < t1]
    for e in inside:  # cut at the edges
        end = min(e["ts"] + e["dur"], t1)
        e["ts"] = max(e["ts"], t0)
        e["dur"] = end - e["ts"]
    body, y = [], TOP
    for lane in LANES:
        mine = [e for e in inside if e["cat"] == lane]
        for number, row in enumerate(rows_of(mine) if lane == "exchange" else [mine]):
            if number == 0:
                body.append(f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end" fill="#222">{lane}</text>')
            body += [rectangle(e, t0, scale, y) for e in row]
            y += ROW
    size = f'width="{LEFT + WIDTH + 20}" height="{y + 10}"'
    style = '<style>text{font:12px sans-serif}</style><rect width="100%" height="100%" fill="#fff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}' + "\n".join(axis(t0, t1, scale, y) + body) + "</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("svg")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--step", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    spans = read(options.trace, options.rank)
    t0, t1 = window(spans, options.step, options.steps)
    with open(options.svg, "w") as file:
        file.write(draw(spans, t0, t1))


if __name__ == "__main__":
    main()
