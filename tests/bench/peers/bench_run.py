# SPDX-License-Identifier: MIT
"""Runs of bench_peers.py: how a program is started in a setting, its time limit, and what it says when it fails."""
import json
import os
import re
import signal
import subprocess

# Ranks of each setting, and the rate of the links between its emulated hosts.
SETTINGS = {"1rank": (1, None), "2ranks": (2, None), "1gbit": (2, "1gbit"), "100mbit": (2, "100mbit")}
# glibc gives memory that is freed back to the kernel, and takes it anew in each step, unless told to keep it.
KEEP_MEMORY = ["MALLOC_MMAP_THRESHOLD_=1000000000", "MALLOC_TRIM_THRESHOLD_=1000000000",
               "MALLOC_TOP_PAD_=200000000"]
NOISE = re.compile(r"^[\s-]*$|^Primary job|^mpirun (noticed|detected)|^Per user-direction|^Process name:"
                   r"|^\s*Exit code:|^\[\S+:\d+\]|^a non-zero exit code|^with_cluster: *$")
TOLD = re.compile(r"(\w*(Error|Exception|Exit)|error)\b.*:|^with_cluster: ")


class Failed(Exception):
    """A run that gives no time; its text is one line."""


def one_line(text, most=160):
    text = " ".join(text.split())
    return text if len(text) <= most else text[:most - 3] + "..."


def reason_of(output):
    """The line of a failed program's output that says most: the last error told, otherwise the last line."""
    lines = [line for line in output.splitlines() if not NOISE.match(line)]
    told = [line for line in lines if TOLD.search(line)]
    return one_line((told or lines or ["it says nothing"])[-1])


def command_of(setting, program, environment, source, limit):
    """The command that starts the program on the ranks of a setting."""
    ranks, rate = SETTINGS[setting]
    command = ["env", *environment, *program]
    if ranks > 1:
        command = ["mpirun", "-n", str(ranks), *([] if rate else ["--bind-to", "none"]), *command]
    if rate:
        command = ["sh", os.path.join(source, "tests/cluster/with_cluster.sh"), "-n", str(ranks), "-r", rate,
                   "-t", str(limit), "--", *command]
    return command


def environment_of(parent):
    """As tests/test_env.sh: what Open MPI needs in containers."""
    result = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none", **parent, "PYTHONDONTWRITEBYTECODE": "1"}
    if os.getuid() == 0:
        result.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return result


def end(process):
    """Lets mpirun end its ranks, then ends what is left."""
    process.terminate()
    try:
        process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.communicate()


def run(command, limit, cwd=None):
    """What the command prints: its output and its errors."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, errors="replace", start_new_session=True, cwd=cwd,
                                   env=environment_of(os.environ))
    except OSError as problem:
        raise Failed(one_line(f"{command[0]}: {problem.strerror}")) from None
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        end(process)
        raise Failed(f"still running after {limit} s") from None
    except BaseException:
        end(process)
        raise
    if process.returncode == 124 and not errors.strip():
        raise Failed(f"still running after {limit} s")
    if process.returncode != 0:
        raise Failed(reason_of(errors if errors.strip() else output))
    return output, errors


def step_time(command, limit, cwd=None):
    """The JSON line that the program printed last."""
    output, errors = run(command, limit, cwd)
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                result = json.loads(line)
                if result["step_ms_p50"] > 0:
                    return result
            except (ValueError, KeyError, TypeError):
                pass
            break
    raise Failed("it printed no step_ms_p50: " + reason_of(errors + output))
