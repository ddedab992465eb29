#!/bin/sh
# SPDX-License-Identifier: MIT
# Compares how soon trainings on emulated hosts (one rank each) reach an accuracy: PyTorch's DDP and Isotherm.
# usage: time_to_accuracy.sh --data DIR [OPTION]... [RUN]..., from the top of the build tree; needs root
#   RUN is "ddp" or "NAME: OPTIONS OF TRAIN"; without any: ddp "lazy: --sync lazy" "daso: --sync daso"
#   --data DIR        real MNIST
#   --hosts N         (2)
#   --rate RATE       of the links, as tc(8) writes it (100mbit); several in quotes: '1gbit 100mbit'
#   --rounds N        the runs take turns N times (1)
#   --seeds 'N...'    the runs take turns with each of these seeds, in place of --rounds
#   --target X        test accuracy to be reached (0.985)
#   --eval-every N    steps between evaluations, whose time does not count (50)
#   --max-steps N     end each run there, the schedule being that of the whole run
#   --until-target    end each run when it has reached the target
#   --epochs N        of the whole run (3)
#   --limit SECONDS   of each run (1800)
#   --keep DIR        keep logs there
# PYTHON names a Python that has torch (/usr/bin/python3, Debian: apt-get install python3-torch).
set -eu

here=$(cd "$(dirname "$0")" && pwd)

# ---- On a host: counts what its interface sends while a command runs --------------------------------

# Each evaluation in the log appears in COUNTS.RANK behind the bytes sent by then. Nothing is started for that while
# the command runs, as it would take time from it.
if [ "${1:-}" = --count ]; then # LOG, COUNTS, command...
    log=$2 counts=$3.$OMPI_COMM_WORLD_RANK sent=/sys/class/net/eth0/statistics/tx_bytes
    shift 3
    read -r bytes <$sent
    echo "$bytes start" >"$counts"
    tail -n +1 -s 0.1 --pid=$$ -f "$log" | while read -r line; do
        read -r bytes <$sent
        case $line in
        *'"event":'*'"eval"'*) echo "$bytes $line" >>"$counts" ;;
        esac
    done &
    exec "$@"
fi

# ---- On the head of the cluster: one run, ended when it has got far enough --------------------------

field() { # name, file, what the line has besides: of the last such line
    sed -n "/$3/s/.*\"$1\": *\"\\{0,1\\}\\([^,\"}]*\\).*/\\1/p" "$2" | tail -n 1
}
far_enough() { # log, target, steps
    awk -v accuracy="$(field test_accuracy "$1" '"eval"')" -v step="$(field step "$1" .)" \
        -v target="$2" -v most="$3" \
        'BEGIN { exit !(target != "-" && accuracy + 0 >= target || most != "-" && step + 0 >= most) }'
}
if [ "${1:-}" = --head ]; then # log, target and steps that end it ("-": it ends by itself), command...
    log=$2 target=$3 most=$4
    shift 4
    [ "$target $most" != "- -" ] || exec "$@"
    "$@" &
    launcher=$!
    while kill -0 $launcher 2>/dev/null; do
        if far_enough "$log" "$target" "$most"; then
            kill -TERM $launcher 2>/dev/null || true
            wait $launcher || true
            exit 0
        fi
        sleep 1
    done
    wait $launcher
    exit
fi

# ---- Command line ----------------------------------------------------------------------------------

fail() { # message
    echo "error: $1" >&2
    exit "${2:-1}"
}
usage() {
    sed -n '/^# usage: /,/^set -eu/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
data='' hosts=2 rates=100mbit seeds=1 target=0.985 every=50 most='' until_target='' epochs=3 limit=1800 keep=''
while [ $# -gt 0 ]; do
    case $1 in
    --until-target)
        until_target=yes
        shift
        continue
        ;;
    --help) usage ;;
    --*) [ $# -ge 2 ] || usage ;;
    *) break ;;
    esac
    case $1 in
    --data) data=$2 ;;
    --hosts) hosts=$2 ;;
    --rate) rates=$2 ;;
    --rounds) seeds=$(yes 1 | head -n "$2") ;;
    --seeds) seeds=$2 ;;
    --target) target=$2 ;;
    --eval-every) every=$2 ;;
    --max-steps) most=$2 ;;
    --epochs) epochs=$2 ;;
    --limit) limit=$2 ;;
    --keep) keep=$2 ;;
    *) usage ;;
    esac
    shift 2
done
[ -n "$data" ] || usage
[ -d "$data" ] || fail "there is no folder $data"
[ $# -gt 0 ] || set -- ddp "lazy: --sync lazy" "daso: --sync daso"
python=${PYTHON:-/usr/bin/python3}
"$python" -c 'import torch' 2>/dev/null || fail "$python has no torch (Debian: apt-get install python3-torch)" 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM HUP
[ -z "$keep" ] || mkdir -p "$keep"

# ---- Runs ------------------------------------------------------------------------------------------

cluster() { # rate, log, target and steps that end the run, command of a rank...
    rate=$1 log=$2 enough=$3 steps=$4
    shift 4
    : >"$log"
    sh "$here/../cluster/with_cluster.sh" -n "$hosts" -r "$rate" -t "$limit" -- \
        sh "$0" --head "$log" "$enough" "$steps" mpirun -n "$hosts" sh "$0" --count "$log" "$log.sent" "$@"
}
ddp() { # rate, log, seed
    # shellcheck disable=SC2016  # the inner shell's
    cluster "$1" "$2" - - sh -c 'log=$0; exec "$@" >>"$log"' "$2" "$python" "$here/peers/ddp_pytorch.py" \
        --data "$data" --master 10.77.0.1 --interface eth0 --eval-every "$every" --epochs "$epochs" \
        --seed "$3" --target "$target" ${most:+--max-steps "$most"} ${until_target:+--until-accuracy "$target"}
}
ours() { # rate, log, seed, options of train
    [ -x bin/train ] || fail "bin/train is missing here: run \"make\" in the build tree first"
    enough=-
    [ -z "$until_target" ] || enough=$target
    # shellcheck disable=SC2086  # options are several words
    cluster "$1" "$2" "$enough" "${most:--}" bin/train --data "$data" --model cnn --epochs "$epochs" \
        --eval-every "$every" --seed "$3" --quiet --log "$2" $4
}

# One row: what the log says, and what the interfaces of the hosts counted until the last evaluation.
row() { # rate, name, log
    cat "$3.sent".* | awk -v rate="$1" -v name="$2" -v target="$target" -v log_file="$3" '
        function field(line, key) {
            if (!match(line, "\"" key "\": *\"?[^,\"}]*")) return ""
            line = substr(line, RSTART, RLENGTH)
            sub(/.*: *"?/, "", line)
            return line
        }
        function shown(value, format) { return value == "" ? "-" : sprintf(format, value) }
        $2 == "start" { start = $1 }
        /"event": *"eval"/ && $1 - start > wire { wire = $1 - start }
        END {
            while ((getline line < log_file) > 0) {
                event = field(line, "event")
                if (event == "sync") { syncs++; waited += field(line, "wait_ms") }
                if (event == "summary") {
                    waiting = field(line, "exposed_ms_per_step")
                    if (waiting == "") waiting = field(line, "wait_ms_per_step")
                }
                if (event != "eval") continue
                step = field(line, "step"); seconds = field(line, "seconds"); bytes = field(line, "bytes")
                accuracy = field(line, "test_accuracy")
                if (reached == "" && accuracy >= target) { reached = seconds; reached_step = step }
            }
            if (syncs) waiting = waited / syncs
            printf "%-8s %-14s %10s %7s %8s %9s %6s %8s %9s %9s %8s %6s\n", rate, name, shown(reached, "%.1f"),
                shown(reached_step, "%d"), shown(accuracy == "" ? "" : 100 * accuracy, "%.2f"),
                shown(seconds, "%.1f"), shown(step, "%d"), shown(seconds ? step / seconds : "", "%.2f"),
                shown(wire / 1e6, "%.1f"), shown(bytes == "" ? "" : bytes / 1e6, "%.1f"), shown(waiting, "%.2f"),
                syncs ? syncs : shown(step, "%d")
        }'
}

run() { # rate, round, RUN, seed
    name=${3%%:*}
    log=$work/$1-$name-$2.jsonl
    status=0
    if [ "$3" = ddp ]; then
        ddp "$1" "$log" "$4" >"$work/output" 2>&1 || status=$?
    else
        ours "$1" "$log" "$4" "${3#*:}" >"$work/output" 2>&1 || status=$?
    fi
    [ -z "$keep" ] || cp "$log" "$log.sent".* "$keep"
    if [ "$status" != 0 ]; then
        cat "$work/output" >&2
        fail "$name at $1 ended with status $status" "$status"
    fi
    row "$1" "$name" "$log"
}

echo "Real MNIST, CNN, $hosts hosts x 1 rank x 64 samples. to target: training time and steps until the first evaluation"
echo "with $target; wire: sent by a host until the last evaluation, what the start and the evaluations send included;"
echo "log: the program's own count; exposed: mean waiting of an exchange (DDP: step - step without exchange)."
printf '%-8s %-14s %10s %7s %8s %9s %6s %8s %9s %9s %8s %6s\n' rate run "to target" "at step" final seconds steps steps/s \
    "wire MB" "log MB" exposed syncs
printf '%-8s %-14s %10s %7s %8s %9s %6s %8s %9s %9s %8s %6s\n' '' '' s '' % '' '' '' '' '' ms ''
for rate in $rates; do
    round=0
    for seed in $seeds; do
        round=$((round + 1))
        for one in "$@"; do
            run "$rate" "$round" "$one" "$seed"
        done
    done
done
