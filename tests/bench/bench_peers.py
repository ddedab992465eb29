#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares a training step of Isotherm with other libraries': 1 rank, 2 ranks on a node, 2 emulated hosts.

    make bench-peers PEERS="--out DIR"                (in the build tree)
    python3 bench_peers.py --quick --out DIR          (the same without make)

A cell is a network, a batch and a setting. Its programs take turns: in each turn every program runs once, beginning
with another one. The number of turns is fixed beforehand. The result of a turn is the program's median step on its
slowest rank. For each program a cell has the median over the turns, and the ratio of Isotherm's time to the program's
with a 95 % interval from the turns. Before, short trials choose each peer's settings for a network, a batch and a
number of ranks. Isotherm runs with its defaults and with as many threads.
Emulated hosts need root. DIR has all samples (samples.jsonl), results.md, results.csv and ratios.svg.
"""
import argparse
import math
import os
import shlex
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True  # next to the sources
sys.path.insert(0, os.path.join(HERE, "peers"))

import bench_report  # noqa: E402
from bench_facts import facts  # noqa: E402
from bench_report import OURS, OURS_PERIODIC  # noqa: E402
from bench_install import Environments, Peer, given_program, known_peers  # noqa: E402
from bench_run import SETTINGS, Failed, command_of, step_time  # noqa: E402
from bench_samples import Samples  # noqa: E402

PARAMETERS = {"mlp": 669706, "cnn": 1199882, "resnet18": 11173962}


def log(text):
    print(text, file=sys.stderr, flush=True)


def between(low, value, high):
    return int(max(low, min(high, value)))


class Paused(Exception):
    """--minutes are over."""


class Bench:
    end = math.inf  # by the clock

    def __init__(self, options):
        self.end = time.monotonic() + 60 * options.minutes
        self.options = options
        self.source = os.path.abspath(os.path.join(HERE, "../.."))
        self.samples = Samples(options.out, options.resume)
        self.environments = Environments(options.env, options.python, options.source, options.install_limit)
        self.peers = {}

    # ---- Peers ---------------------------------------------------------------------------------------------

    def find_peers(self):
        folder = os.path.abspath(os.path.join(self.options.build, "tests/bench"))
        known = {OURS: Peer("Isotherm, lazy", [folder + "/bench_step"], options=["--sync", "lazy"]),
                 OURS_PERIODIC: Peer("Isotherm, DiLoCo", [folder + "/bench_period"], least_ranks=2), **known_peers()}
        periodic = [OURS_PERIODIC] if "exogym" in self.options.peers else []
        for name in [OURS, *periodic, *self.options.peers]:
            peer = given_program(self.options.program[name]) if name in self.options.program else known[name]
            try:
                self.environments.prepare(peer)
                self.peers[name] = peer
                self.samples.add(kind="peer", peer=name, label=peer.label)
            except Failed as problem:
                log(f"{name}: left out: {problem}")
                self.samples.add(kind="peer", peer=name, label=peer.label, failed=str(problem))

    # ---- One run -------------------------------------------------------------------------------------------

    def time(self, name, cell, chosen, steps, warmup):
        """What the program tells of a run in a cell."""
        peer, (setting, model, batch) = self.peers[name], cell
        command = [*peer.command(chosen), "--model", model, "--batch", str(batch), "--steps", str(steps),
                   "--warmup", str(warmup)]
        if SETTINGS[setting][1] and peer.python:
            command += ["--master", "10.77.0.1", "--interface", "eth0"]
        environment = peer.environment(chosen, os.path.join(os.path.abspath(self.options.env), "inductor"))
        return step_time(command_of(setting, command, environment, self.source, self.options.limit),
                         self.options.limit)

    def pause_if_due(self):
        if time.monotonic() > self.end:
            raise Paused

    # ---- Trials --------------------------------------------------------------------------------------------

    def try_setting(self, name, cell, chosen, lengths):
        """Median ms in a short run, or None where it fails; done once for each setting."""
        what = {"peer": name, "model": cell[1], "batch": cell[2], "ranks": SETTINGS[cell[0]][0], "chosen": chosen}
        known = self.samples.trial(what)
        if known is None:
            self.pause_if_due()
            try:
                known = {"ms": self.time(name, cell, chosen, *lengths)["step_ms_p50"]}
            except Failed as problem:
                known = {"failed": str(problem)}
            self.samples.add(kind="trial", **what, **known)
            log(f"trial of {name}, {cell[1]} {cell[2]}, {what['ranks']} ranks, {chosen}: {list(known.values())[0]}")
        return known

    def choose(self, name, cell, lengths):
        """(setting, ms) of the program's fastest setting; raises why none works."""
        threads = max(1, self.options.cores // SETTINGS[cell[0]][0])
        best, best_ms, reason = {"threads": threads}, None, ""
        stages = self.peers[name].stages[:self.options.stages] or [[{}]]
        for number, stage in enumerate(stages):
            start = best
            for change in stage:
                candidate = {**start, **change}
                no_images = cell[1] == "mlp" and change.get("layout") == "channels_last"
                if no_images or (number > 0 and candidate == start):
                    continue
                told = self.try_setting(name, cell, candidate, lengths)
                reason = reason or told.get("failed", "")
                if "ms" in told and (best_ms is None or told["ms"] < best_ms):
                    best, best_ms = candidate, told["ms"]
                if best_ms is None and told.get("failed", "").startswith("still running"):
                    break  # others would take as long
            if best_ms is None:
                break
        if best_ms is None:
            raise Failed(reason)
        return best, best_ms

    def trials(self, cell):
        """The chosen settings of the programs in a cell, and the steps of a run and before it.

        Hosts take what was chosen for as many ranks on one: a link does not change how fast kernels are.
        """
        near = ("1rank" if SETTINGS[cell[0]][0] == 1 else "2ranks", *cell[1:])
        chosen, times, lengths = {}, [], (3, 3)
        for name in self.programs(cell):
            try:
                chosen[name], ms = self.choose(name, near, lengths)
                times.append(ms)
                lengths = (between(2, 2000 / times[0], 20), between(2, 1000 / times[0], 6))
            except Failed as problem:
                self.samples.fail(cell, name, str(problem))
        steps = self.steps(cell, max(times, default=1))
        return chosen, steps, between(2, steps / 2, 12)

    def steps(self, cell, slowest):
        """As many as fit into the time of a turn, going by the slowest program's trial and the wire."""
        rate = {"1gbit": 1e6, "100mbit": 1e5}.get(cell[0])  # bits each millisecond
        wire = PARAMETERS.get(cell[1], 0) * 32 / rate if rate else 0
        return between(min(3, self.options.steps), self.options.seconds * 1000 / (slowest + wire), self.options.steps)

    # ---- Cells ---------------------------------------------------------------------------------------------

    def programs(self, cell):
        return [name for name, peer in self.peers.items() if SETTINGS[cell[0]][0] >= peer.least_ranks]

    def turn(self, cell, number, plan):
        """All programs once; the turn begins with another one than the last."""
        chosen, steps, warmup = plan
        names = [name for name in self.programs(cell) if name in chosen]
        first = number % len(names) if names else 0
        for name in names[first:] + names[:first]:
            if self.samples.failure(cell, name):
                continue
            try:
                self.samples.turn(cell, number, name, self.time(name, cell, chosen[name], steps, warmup))
            except Failed as problem:
                log(f"{name}: {problem}")
                self.samples.fail(cell, name, str(problem))

    def cell(self, cell):
        programs = self.programs(cell)
        todo = [i for i in range(self.options.turns) if not self.samples.is_complete(cell, i, programs)]
        if not todo:
            return
        plan = self.samples.plan(cell, programs) or self.trials(cell)
        self.samples.keep_plan(cell, *plan)
        for number in todo:
            self.pause_if_due()
            if self.samples.begin_turn(cell, number, programs):
                self.turn(cell, number, plan)
        middle = {name: round(statistics.median(ms), 3) for name, ms in self.samples.by_program(cell).items()}
        log(f"{cell[0]}, {cell[1]}, batch {cell[2]}: " + ", ".join(f"{name} {ms} ms" for name, ms in middle.items()))

    def run(self):
        options = self.options
        self.find_peers()
        for setting in options.settings:
            for model in options.models:
                for batch in options.batches:
                    self.cell((setting, model, batch))
                    self.report()
        self.report()

    def report(self):
        bench_report.write(self.options.out, self.samples, self.options.turns)


# ---- Options ------------------------------------------------------------------------------------------------


def words(known):
    def parse(text):
        chosen = [word for word in text.split(",") if word]
        for word in chosen:
            if known and word not in known:
                raise argparse.ArgumentTypeError(f"{word} is none of {', '.join(known)}")
        return chosen
    return parse


def assignment(text):
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text} is not NAME=VALUE")
    return name, value


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="peers", metavar="DIR", help="results (peers)")
    parser.add_argument("--resume", action="store_true", help="keep the turns that are in --out")
    parser.add_argument("--models", type=words(list(PARAMETERS)), default=list(PARAMETERS))
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[16, 64, 256],
                        help="of each rank")
    parser.add_argument("--settings", type=words(list(SETTINGS)), default=list(SETTINGS), help=", ".join(SETTINGS))
    parser.add_argument("--peers", type=words(None), default=list(known_peers()), help=", ".join(known_peers()))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30, help="most timed steps of a turn (30)")
    parser.add_argument("--seconds", type=float, default=5, help="a turn times steps for at most so many seconds, but at least 3 "
                        "steps (5)")
    parser.add_argument("--stages", type=int, default=4, help="of trials, where a peer has them: layout and "
                        "torch.compile, then fused SGD, then kept memory, then one thread (4)")
    parser.add_argument("--limit", type=int, default=600, help="seconds that a run may take (600)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="then stop before the next turn or trial; "
                        "--resume goes on (no limit)")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="ranks share these (all)")
    parser.add_argument("--build", default=".", metavar="DIR", help="build tree, after \"make bench\" (.)")
    parser.add_argument("--env", default="peers-env", metavar="DIR", help="the peers' environments (peers-env)")
    parser.add_argument("--python", default=sys.executable, help="makes the environments")
    parser.add_argument("--install-limit", type=int, default=1800, help="seconds that pip may take (1800)")
    parser.add_argument("--source", type=assignment, action="append", default=[], metavar="PACKAGE=DIR",
                        help="install a package from there, not from PyPI")
    parser.add_argument("--program", type=assignment, action="append", default=[], metavar="NAME=COMMAND",
                        help="a peer of your own: takes --model, --batch, --steps, --warmup and --threads, and prints "
                        "a JSON line with step_ms_p50")
    parser.add_argument("--quick", action="store_true", help="tries everything: mlp, batch 16, 2 turns of 5 steps")
    return check(parser, parser.parse_args())


def check(parser, options):
    options.source, options.program = dict(options.source), dict(options.program)
    for name in options.peers:
        if name not in known_peers() and name not in options.program:
            parser.error(f"--peers: {name} is none of {', '.join(known_peers())} nor given with --program")
    if min(options.turns, options.steps, options.stages, options.limit, *options.batches) < 1:
        parser.error("--turns, --steps, --stages, --limit and --batches are at least 1")
    if OURS not in options.program and not os.path.exists(os.path.join(options.build, "tests/bench/bench_step")):
        parser.error('tests/bench/bench_step is missing: run "make bench" in the build tree, or give --build')
    if options.quick:
        options.models, options.batches, options.turns, options.steps = ["mlp"], [16], 2, 5
    return options


def main():
    options = parse_options()
    try:
        bench = Bench(options)
        bench.samples.add(kind="session", command=shlex.join(sys.argv), **facts(bench.source, options.build))
        bench.run()
    except FileExistsError as problem:
        sys.exit(f"error: {problem}")
    except (KeyboardInterrupt, Paused):
        sys.exit("stopped: --resume goes on from here")


if __name__ == "__main__":
    main()
