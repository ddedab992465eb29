# SPDX-License-Identifier: MIT
"""What bench_peers.py has measured: samples.jsonl, which only grows, so that a run can be stopped and go on."""
import json
import os


def same(some, others):
    return all(some.get(key) == value for key, value in others.items())


class Samples:
    def __init__(self, folder, resume):
        os.makedirs(folder, exist_ok=True)
        self.path = os.path.join(folder, "samples.jsonl")
        self.lines = []
        if os.path.exists(self.path):
            if not resume:
                raise FileExistsError(f"{self.path} is there: give --resume to go on, or another --out")
            self.read()

    def read(self):
        """A last line that was cut off is left out, and cut off in the file, too."""
        with open(self.path, "rb") as file:
            content = file.read()
        whole = content[:content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))
        self.lines = [json.loads(line) for line in whole.splitlines()]

    def add(self, **line):
        self.lines.append(line)
        with open(self.path, "a", encoding="utf-8") as file:
            print(json.dumps(line), file=file, flush=True)

    def of_kind(self, kind, **fields):
        return [line for line in self.lines if line["kind"] == kind and same(line, fields)]

    # ---- Before the turns ----------------------------------------------------------------------------------

    def trial(self, what):
        """The last trial's result, {"ms"} or {"failed"}, or None."""
        found = self.of_kind("trial", **what)
        return {key: found[-1][key] for key in ("ms", "failed") if key in found[-1]} if found else None

    def keep_plan(self, cell, chosen, steps, warmup):
        if self.plan(cell) != (chosen, steps, warmup):
            self.add(kind="plan", cell=list(cell), chosen=chosen, steps=steps, warmup=warmup)

    def plan(self, cell, programs=()):
        """(settings, steps, warmup) if it holds for all programs that have not failed, or None."""
        found = self.of_kind("plan", cell=list(cell))
        if not found or any(name not in found[-1]["chosen"] and not self.failure(cell, name) for name in programs):
            return None
        return found[-1]["chosen"], found[-1]["steps"], found[-1]["warmup"]

    # ---- Turns ---------------------------------------------------------------------------------------------

    def turn(self, cell, number, name, told):
        self.add(kind="turn", cell=list(cell), turn=number, peer=name, ms=told["step_ms_p50"], told=told)

    def fail(self, cell, name, reason):
        self.add(kind="failure", cell=list(cell), peer=name, failed=reason)

    def failure(self, cell, name):
        found = self.of_kind("failure", cell=list(cell), peer=name)
        return found[-1]["failed"] if found else None

    def turns(self, cell):
        """The lines that count: turn -> program -> line. A line "drop" takes back what its turn had."""
        result = {}
        for line in self.lines:
            if line.get("cell") != list(cell):
                continue
            if line["kind"] == "drop":
                result.pop(line["turn"], None)
            elif line["kind"] == "turn":
                result.setdefault(line["turn"], {})[line["peer"]] = line
        return result

    def is_complete(self, cell, number, programs):
        done = self.turns(cell).get(number, {})
        return all(name in done or self.failure(cell, name) for name in programs)

    def begin_turn(self, cell, number, programs):
        """False if it is complete; what an incomplete one has is dropped, as its pairs would be far apart."""
        if self.is_complete(cell, number, programs):
            return False
        if number in self.turns(cell):
            self.add(kind="drop", cell=list(cell), turn=number)
        return True

    def by_program(self, cell, turns=None):
        """program -> its ms, by turn, of the turns that all have that did not fail."""
        of_turn = self.turns(cell)
        numbers = sorted(of_turn if turns is None else set(of_turn) & set(range(turns)))
        names = dict.fromkeys(name for number in numbers for name in of_turn[number])
        good = [name for name in names if not self.failure(cell, name)]
        whole = [number for number in numbers if all(name in of_turn[number] for name in good)]
        return {name: [of_turn[number][name]["ms"] for number in whole] for name in good if whole}

    def cells(self):
        return list(dict.fromkeys(tuple(line["cell"]) for line in self.lines if "cell" in line))
