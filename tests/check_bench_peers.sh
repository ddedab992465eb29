#!/bin/sh
# SPDX-License-Identifier: MIT
# Checks what bench_peers.py does with times: programs that tell given times take the place of Isotherm and its peers.
# Prints the results as TAP.
# usage: check_bench_peers.sh; no peer is needed
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
python=${ISO_TEST_PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || {
    echo "1..0 # SKIP no python3, of version 3.10 or later"
    exit 0
}
enter_work
export PYTHONPATH="$root/tests/bench/peers" PYTHONDONTWRITEBYTECODE=1

# A program of a name tells the times of NAME.times, one each call; "calls" has the calls.
cat >fake <<'END'
name=$1
shift
echo "$name $*" >>calls
time=$(sed -n "$(grep -c "^$name " calls)p" "$name.times")
case $time in
fail)
    echo "Traceback (most recent call last):" >&2
    echo "RuntimeError: no | such kernel" >&2
    echo "--------------------------------" >&2
    exit 1
    ;;
silent) echo "{\"step_ms_p50\": 0}" ;;
*) echo "{\"peer\": \"$name 1.0\", \"step_ms_p50\": $time}" ;;
esac
END
bench() { # options...
    run_alone "$python" "$root/tests/bench/bench_peers.py" --out out --settings 1rank --cores 2 --turns 3 --steps 5 \
        --program "isotherm=sh fake isotherm" --program "a=sh fake a" --program "b=sh fake b" --program "c=sh fake c" \
        "$@"
}
cell() { # program, column: of the first such line of results.csv
    "$python" -c 'import csv, sys
print(next(row[sys.argv[2]] for row in csv.DictReader(open("out/results.csv")) if row["program"] == sys.argv[1]))' "$@"
}
is() { # value, expected, what
    [ "$1" = "$2" ]
    good=$?
    echo "\"$1\", not \"$2\"" >compared
    result $good "$3"
}
shown="stdout stderr compared calls out/results.csv"

# ---- Times, order and failures: the first call of each is its trial ----

printf '%s\n' 3 2 4 8 >isotherm.times
printf '%s\n' 3 4 8 32 >a.times
printf '%s\n' 3 5 fail 6 >b.times
printf '%s\n' silent >c.times
bench --models mlp --batches 16 --peers a,b,c,torchfort
is "$status" 0 "peers that fail do not end the run"
is "$(cell isotherm median_ms) $(cell a median_ms)" "4 8" "a program has the median of its turns"
# Ratios 1/2, 1/2 and 1/4: exp(mean of logarithms -+ 4.30265 s / sqrt(3)), s = 0.40018.
is "$(cell a ratio) $(cell a low) $(cell a high)" "0.3969 0.1469 1.072" "the ratio is of pairs, with its 95 % interval"
is "$(cell a version), $(cell a chosen), $(cell a turns)" "a 1.0, 2 threads, 3" "a row tells version, setting and turns"
is "$(sed 's/ .*//' calls | tr '\n' ' ')" "isotherm a b c isotherm a b a b isotherm isotherm a " \
    "programs alternate, each turn begins with another one, and those that failed are left out"
is "$(cell b failed)$(cell b median_ms)" "RuntimeError: no | such kernel" \
    "a program that fails has its message for a row"
cell c failed | grep -q "^it printed no step_ms_p50: "
result $? "a program that tells no time has failed"
grep -qF 'RuntimeError: no \| such kernel | |' out/results.md &&
    grep -q '^| mlp | 16 | a | 2 threads | 8 ms | 0.397 | 0.147 to 1.07 |$' out/results.md
result $? "the page has both"
grep -q '^| TorchFort | no package index has it' out/results.md
result $? "the page tells why a peer is not there"
[ -s out/ratios.svg ] || ! command -v gnuplot >/dev/null
result $? "the plot is there, where gnuplot is"

# ---- Going on ----

bench --models mlp --batches 16 --peers a
[ "$status" = 1 ] && [ "$(grep -c '^error: .*--resume' stderr)" = 1 ]
result $? "a folder that has samples is refused without --resume"
cp out/results.csv before
: >calls
bench --models mlp --batches 16 --peers a,b,c,torchfort --resume
[ "$status" = 0 ] && cmp before out/results.csv >compared && [ ! -s calls ]
result $? "a finished cell is kept"
# Without the last turn but one line, of which half is there.
head -n -1 out/samples.jsonl | grep -v '"kind": "session"' >cut.jsonl
grep -n '"turn": 2, "peer": "isotherm"' cut.jsonl | cut -d : -f 1 >last
head -n "$(cat last)" cut.jsonl >out/samples.jsonl
printf '{"kind": "turn", "ce' >>out/samples.jsonl
printf '%s\n' 16 >isotherm.times
printf '%s\n' 64 >a.times
: >calls
bench --models mlp --batches 16 --peers a,b,c --resume
is "$status $(sed 's/ .*//' calls | tr '\n' ' ')" "0 isotherm a " \
    "a turn that was not complete is measured anew, no other"
is "$(cell isotherm median_ms) $(cell a median_ms) $(cell a ratio)" "4 8 0.3969" "its first half does not count"
: >calls
bench --models mlp --batches 256 --peers a --resume --minutes 0
is "$status $(cat calls)" "1 " "--minutes ends it before the next trial"
grep -q '^stopped: --resume' stderr
result $? "and it says how to go on"

# ---- Parts ----

"$python" - >compared 2>&1 <<'END'
import math
from bench_stats import student_t

def upper(t, n):
    """Probability of more than t, by Simpson's rule over the angle whose tangent is t / sqrt(n)."""
    scale = math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2)) / math.sqrt(math.pi)
    low, high, parts = math.atan(t / math.sqrt(n)), math.pi / 2, 200
    step = (high - low) / parts
    f = [math.cos(low + i * step) ** (n - 1) for i in range(parts + 1)]
    return scale * step / 3 * (f[0] + f[-1] + 4 * sum(f[1:-1:2]) + 2 * sum(f[2:-1:2]))

wrong = [n for n in [*range(1, 41), 100, 400] if abs(upper(student_t(n), n) - 0.025) > 4e-6]
assert not wrong, wrong
END
result $? "Student's quantiles are those of its density"
"$python" - >compared 2>&1 <<'END'
import time
from bench_run import Failed, reason_of, run

start = time.monotonic()
try:
    run(["sh", "-c", "sleep 100 & wait"], 0.1)
    raise SystemExit("it did not end")
except Failed as problem:
    assert str(problem) == "still running after 0.1 s", problem
assert time.monotonic() - start < 60
text = "  File \"x.py\"\nValueError: no gloo: none\n-----\nPrimary job  terminated normally, but 1 process\n"
text += "mpirun detected that one or more\n\n  Process name: [[1,1],0]\n  Exit code:    1\n"
assert reason_of(text) == "ValueError: no gloo: none"
assert reason_of("") == "it says nothing"
END
result $? "a program that takes too long is ended, and the reason of a failure is found"
"$python" - >compared 2>&1 <<'END'
from bench_report import rows_of
from bench_samples import Samples

samples, cell = Samples("periodic", False), ("2ranks", "mlp", 16)
times = {"isotherm": 1, "isotherm-diloco": 2, "exogym": 8}
samples.keep_plan(cell, {name: {"threads": 1} for name in times}, 5, 2)
for name, ms in times.items():
    samples.turn(cell, 0, name, {"step_ms_p50": ms})
ratios = {row["program"]: row["ratio"] for row in rows_of(samples, 1)}
assert ratios == {"isotherm": "", "isotherm-diloco": "", "exogym": 0.25}, ratios
END
result $? "a periodic mode is compared with Isotherm's periodic mode"
"$python" - "$root" >compared 2>&1 <<'END'
import sys
sys.path.insert(0, sys.argv[1] + "/tests/bench")
import bench_peers
from bench_install import COMPILED, Peer

bench = bench_peers.Bench.__new__(bench_peers.Bench)
bench.options = type("Options", (), {"cores": 4, "stages": 4})
bench.peers = {"p": Peer("P", [], [COMPILED, [{"memory": True}], [{"threads": 1}]])}
tried = []

def try_setting(name, cell, chosen, lengths):
    tried.append(dict(chosen))
    if chosen["compile"] and chosen["layout"] == "plain":
        return {"failed": "no compiler"}
    return {"ms": 10 - 4 * chosen["compile"] - 2 * bool(chosen.get("memory")) + 5 * (chosen["threads"] == 1)}

bench.try_setting = try_setting
best, ms = bench.choose("p", ("2ranks", "cnn", 16), (1, 1))
assert (best, ms) == ({"threads": 2, "layout": "channels_last", "compile": True, "memory": True}, 4), (best, ms)
assert len(tried) == 6, tried
command = bench.peers["p"].command(best)
assert command == ["--threads", "2", "--format", "channels_last", "--compile"], command
assert any("MALLOC" in word for word in bench.peers["p"].environment(best, "/x"))
bench.options.stages = 1
assert bench.choose("p", ("2ranks", "cnn", 16), (1, 1))[1] == 6
bench.try_setting = lambda *_: {"failed": "no torch"}
try:
    bench.choose("p", ("1rank", "mlp", 16), (1, 1))
    raise SystemExit("something was chosen")
except bench_peers.Failed as problem:
    assert str(problem) == "no torch"
END
result $? "trials choose the fastest setting, and go on after one that fails"
print_plan
