# SPDX-License-Identifier: MIT
"""The peers of bench_peers.py: where each comes from, which settings it has, and the environments that hold them.

An environment DIR/NAME is made once. Those of HeAT, Horovod and EXO Gym see the PyTorch of DIR/torch, unless pip finds
that they need another one. What pip says is in DIR/NAME.log. Where it failed, DIR/NAME.failed says why, and keeps later
runs from trying again.
"""
import os
import shlex
import subprocess
import sys

from bench_run import KEEP_MEMORY, Failed, one_line, reason_of, run

HERE = os.path.dirname(os.path.abspath(__file__))
LAYOUTS = [{"layout": "plain"}, {"layout": "channels_last"}]
COMPILED = [{**layout, "compile": compiled} for compiled in (False, True) for layout in LAYOUTS]
MEMORY, FUSED, ONE_THREAD = [{"memory": True}], [{"fused": True}], [{"threads": 1}]
# The words of a setting: those of a program's command, and how a table calls them.
OPTIONS = {"layout": lambda value: ["--format", value], "compile": lambda value: ["--compile"] * value,
           "fused": lambda value: ["--fused"] * value, "threads": lambda value: ["--threads", str(value)]}
NAMES = {"layout": lambda value: value, "compile": lambda value: "compiled" if value else "eager",
         "fused": lambda value: "fused SGD" * value, "memory": lambda value: "freed memory kept" * value,
         "threads": lambda value: f"{value} thread" + "s" * (value > 1)}


class Peer:
    """A program with what is to be tried of it: stages of settings, each stage on top of the best so far."""

    def __init__(self, label, program, stages=(), *, package="", check="", torch_too=True, options=(), least_ranks=1,
                 absent="", build=(), variables=()):
        self.label, self.program, self.stages, self.options = label, program, stages, list(options)
        self.package, self.check, self.torch_too = package, check, torch_too
        self.least_ranks, self.absent, self.build, self.variables = least_ranks, absent, build, variables
        self.python = None

    def command(self, setting):
        """The words of the program in a setting, without those that all programs have."""
        words = [word for name, value in setting.items() if name in OPTIONS for word in OPTIONS[name](value)]
        return [*([self.python] if self.python else []), *self.program, *self.options, *words]

    def environment(self, setting, cache):
        return [f"OMP_NUM_THREADS={setting['threads']}", *(KEEP_MEMORY if setting.get("memory") else []),
                *([f"TORCHINDUCTOR_CACHE_DIR={cache}"] if setting.get("compile") else [])]


def script(name):
    return [os.path.join(HERE, name)]


def known_peers():
    torch, heat = script("step_pytorch.py"), script("step_heat.py")
    return {
        "torch": Peer("PyTorch DDP, current", torch, [COMPILED, FUSED, MEMORY, ONE_THREAD],
                      package="torch numpy setuptools", check="torch", torch_too=False),
        "debian": Peer("PyTorch DDP, Debian", torch, [LAYOUTS, MEMORY, ONE_THREAD], check="torch"),
        "heat-blocking": Peer("HeAT, blocking", heat, [LAYOUTS, MEMORY, ONE_THREAD], package="heat",
                              check="heat", options=["--mode", "blocking"]),
        "heat-nonblocking": Peer("HeAT, non-blocking", heat, [LAYOUTS, MEMORY, ONE_THREAD], package="heat",
                                 check="heat", options=["--mode", "non-blocking"]),
        "horovod": Peer("Horovod", script("step_horovod.py"), [COMPILED, FUSED, MEMORY, ONE_THREAD], package="horovod",
                        check="horovod.torch", build=["setuptools<81", "wheel", "packaging"],
                        variables=["HOROVOD_WITH_PYTORCH=1", "HOROVOD_WITH_MPI=1", "HOROVOD_WITHOUT_GLOO=1",
                                   "HOROVOD_WITHOUT_TENSORFLOW=1", "HOROVOD_WITHOUT_MXNET=1"]),
        "torchfort": Peer("TorchFort", [], absent="no package index has it, and it trains no network that it is not "
                          "given: build it, and give a program that times a step with --program torchfort=COMMAND"),
        "exogym": Peer("EXO Gym, DiLoCo", script("step_exogym.py"), [LAYOUTS, FUSED, MEMORY], package="exogym",
                       check="exogym.strategy.diloco", least_ranks=2),
    }


def given_program(command):
    return Peer(os.path.basename(shlex.split(command)[-1]), shlex.split(command))


# ---- Environments ------------------------------------------------------------------------------------------


def answer(python, code):
    return run([python, "-c", code], 600)[0].strip()


def is_there(python, module):
    """Whether the module can be imported, and otherwise why not."""
    try:
        answer(python, f"import {module}")
    except Failed as problem:
        return str(problem)
    return None


def make_environment(folder, base, torch):
    """A virtual environment, which sees the packages of another one where `torch` is its Python."""
    run([base, "-m", "venv", folder], 300)
    python = os.path.join(folder, "bin", "python")
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    if torch:
        with open(os.path.join(answer(python, where), "torch.pth"), "w", encoding="utf-8") as file:
            print(answer(torch, where), file=file)
    return python


def pip(python, what, log, limit, variables=()):
    command = ["env", *variables, python, "-m", "pip", "install", *what]
    with open(log, "a", encoding="utf-8") as file:
        print("+ " + shlex.join(command), file=file, flush=True)
        try:
            status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                    timeout=limit, check=False).returncode
        except subprocess.TimeoutExpired:
            raise Failed(f"pip was still installing after {limit} s") from None
    if status != 0:
        with open(log, encoding="utf-8", errors="replace") as file:
            raise Failed("pip: " + pip_reason(file.read()))


def pip_reason(log):
    """The compiler's first error where one is, otherwise what pip says last."""
    lines = log.split("\n+ ")[-1].splitlines()
    told = [line.strip() for line in lines if " error: " in line and "subprocess" not in line]
    return one_line(told[0]) if told else reason_of(log)


def install(peer, folder, base, torch, sources, limit):
    log = folder + ".log"
    python = make_environment(folder, base, torch)
    if peer.build:
        pip(python, peer.build, log, limit)
    what = [sources[peer.package]] if peer.package in sources else peer.package.split()
    pip(python, [*(["--no-build-isolation"] if peer.build else []), *what], log, limit, peer.variables)
    problem = is_there(python, peer.check)
    if problem:
        raise Failed(f"{peer.package} is installed, but: {problem}")
    return python


class Environments:
    def __init__(self, folder, base, sources, limit):
        self.folder, self.base, self.sources, self.limit = folder, base, sources, limit
        os.makedirs(folder, exist_ok=True)

    def prepare(self, peer):
        """Gives the peer its Python, or raises why there is none."""
        if peer.absent:
            raise Failed(peer.absent)
        if peer.package:
            peer.python = self.python(peer)
        elif peer.check:
            peer.python = "/usr/bin/python3"
            problem = is_there(peer.python, peer.check)
            if problem:
                raise Failed(f"{peer.python}: {problem} (Debian: apt-get install python3-torch)")

    def python(self, peer):
        folder = os.path.join(self.folder, peer.package.split()[0])
        python = os.path.join(folder, "bin", "python")
        if os.path.exists(folder + ".failed"):
            with open(folder + ".failed", encoding="utf-8") as file:
                raise Failed(file.read().strip())
        problem = is_there(python, peer.check) if os.path.exists(python) else "it is not there"
        if not problem:
            return python
        if problem.startswith("still running"):
            raise Failed(f"{python}, import {peer.check}: {problem}")
        torch = self.python(known_peers()["torch"]) if peer.torch_too else None
        print(f"installing {peer.package} in {folder}", file=sys.stderr)
        try:
            return install(peer, folder, self.base, torch, self.sources, self.limit)
        except Failed as problem:
            with open(folder + ".failed", "w", encoding="utf-8") as file:
                print(problem, file=file)
            raise
