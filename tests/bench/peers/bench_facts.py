# SPDX-License-Identifier: MIT
"""What a page of measurements says of the machine and of the programs: processor, versions, date, commit."""
import datetime
import os
import platform
import re
import subprocess


def first_line(*command):
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        return text.strip().splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def found_in(path, pattern):
    try:
        with open(path, encoding="utf-8") as file:
            match = re.search(pattern, file.read(), re.MULTILINE)
            return match.group(1).strip() if match else None
    except OSError:
        return None


def commit_of(source):
    """The commit of the source tree, and whether files differ from it."""
    commit = first_line("git", "-C", source, "rev-parse", "--short=12", "HEAD")
    if commit and first_line("git", "-C", source, "status", "--porcelain", "--untracked-files=no"):
        commit += " with changes"
    return commit


def facts(source, build):
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "isotherm": found_in(os.path.join(build, "config.h"), r'#define PACKAGE_VERSION "(.*)"'),
        "commit": commit_of(source),
        "processor": found_in("/proc/cpuinfo", r"^model name\s*: (.*)$") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "system": found_in("/etc/os-release", r'^PRETTY_NAME="?([^"\n]*)'),
        "mpi": first_line("mpirun", "--version"),
        "compiler": first_line("cc", "--version"),
        "load": round(os.getloadavg()[0], 2),
    }
