#!/bin/sh
# SPDX-License-Identifier: MIT
# Trains a small network for very many steps, with batches that come late at random: once undisturbed, and once killed
# and resumed at random. Memory and descriptors of the ranks must stay flat, and both runs must end with the same bits.
# Prints the results as TAP, with figures.
# usage: soak.sh [-s STEPS (1000000)] [-n RANKS (4)] [-k KILLS (20)] [-o OPTIONS ("--sync lazy")], in the build tree
#        ("make soak"); DELAY_MS: of random_delay.c; MPICC, MPIRUN, MPIRUN_FLAGS
set -u

root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
. "$root/tests/idx_files.sh"
steps=1000000 ranks=4 kills=20 options="--sync lazy"
while getopts s:n:k:o: option; do
    case $option in
    s) steps=$OPTARG ;;
    n) ranks=$OPTARG ;;
    k) kills=$OPTARG ;;
    o) options=$OPTARG ;;
    *) sed -n 's/^# usage: /usage: /p' "$0" >&2 && exit 2 ;;
    esac
done
case "$options " in *"--sync daso "*) options="$options --cooldown 0" ;; esac # its start needs memory late
need_launcher
enter_work
shown=output
data_set data $((ranks * 8192)) 64 8 # an epoch has 2048 steps
trap 'kill "${job:-}"; exit 130' INT TERM
${MPICC:-mpicc} -shared -fPIC -o delay.so "$root/tests/soak/random_delay.c" || exit 1

bad=0
judge() { # as result
    result "$1" "$2"
    [ "$1" = 0 ] || bad=1
}

# ---- Running and watching ------------------------------------------------------------------------------

start() { # log
    rm -f pid.*
    log=$1 ripe=0
    # shellcheck disable=SC2086,SC2016  # flags and options are several words; $$ belongs to the inner shell
    "$launcher" $flags -n "$ranks" sh -c \
        'echo $$ >"pid.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"; export LD_PRELOAD="$0"; exec "$@"' "$work/delay.so" \
        "$train" --data data --model mlp --batch 4 --steps "$steps" --schedule constant --lr 0.0001 --threads 1 --quiet \
        $options --checkpoint state --checkpoint-every 1000 --resume auto --log "$1" >output 2>&1 </dev/null &
    job=$!
}
alive() { kill -0 "$job" 2>/dev/null; }
# One line for each rank: seconds, rank, KiB of resident memory, descriptors, 1 after the first epoch (else 0).
sample() { # file
    [ $ripe = 1 ] || ! grep -q '"event":"epoch"' "$log" 2>/dev/null || ripe=1
    for file in pid.*; do
        [ -s "$file" ] || continue # not started yet
        pid=$(cat "$file")
        memory=$(awk '/^VmRSS/ { print $2 }' "/proc/$pid/status" 2>/dev/null)
        open=$(find "/proc/$pid/fd" -type l 2>/dev/null | wc -l)
        [ -z "$memory" ] || echo "$(date +%s) ${file#pid.} $memory $open $ripe" >>"$1"
    done
}
watch_until() { # file of samples, seconds, or nothing: the end of the run
    end=$(($(date +%s) + ${2:-1000000000}))
    while alive && [ "$(date +%s)" -lt $end ]; do
        sleep 1
        sample "$1"
    done
}
below() { # number: a random one
    od -An -N4 -tu4 /dev/urandom | awk -v most="$1" '{ print $1 % most }'
}

# ---- Flat ----------------------------------------------------------------------------------------------

# Of each rank, what it had most of in the first quarter of its samples, and in the first nine tenths: some modes need
# more at the end, for their cool-down and the last mean. Samples count from the end of the first epoch: the periodic
# modes make their averages at the first save and the first evaluation. Memory may grow by 1 % and 256 KiB, and
# descriptors by 2: those of files that are being saved.
is_flat() { # file of samples
    awk '$5 { n[$2]++; memory[$2, n[$2]] = $3; open[$2, n[$2]] = $4 }
         END {
             for (r in n) {
                 ranks++
                 early = fds = late = late_fds = 0
                 for (i = 1; i <= n[r] * 0.9; i++) {
                     if (i <= (n[r] + 3) / 4 && memory[r, i] > early) early = memory[r, i]
                     if (i <= (n[r] + 3) / 4 && open[r, i] > fds) fds = open[r, i]
                     if (memory[r, i] > late) late = memory[r, i]
                     if (open[r, i] > late_fds) late_fds = open[r, i]
                 }
                 printf "# rank %d: %d samples, memory %d KiB after a quarter, then at most %d KiB; descriptors %d, then at most %d\n", r, n[r], early, late, fds, late_fds
                 if (n[r] < 8 || late > 1.01 * early + 256 || late_fds > fds + 2) bad = 1
             }
             exit bad || !ranks
         }' "$1"
}

# ---- The runs ------------------------------------------------------------------------------------------

began=$(date +%s)
start log.whole
watch_until samples.whole
wait "$job"
status=$?
took=$(($(date +%s) - began))
[ $status = 0 ] && [ -n "$(summary_field param_hash log.whole)" ]
judge $? "an undisturbed run makes $steps steps on $ranks ranks (in $took s)"
is_flat samples.whole
judge $? "its memory and descriptors are flat"

# Lives of random length, about twice as many steps as they leave: kill -9 of a rank, SIGUSR1, SIGTERM to a rank.
rm -f state*
deaths=0 lives=0 status=1
while [ $status != 0 ] && [ $lives -lt $((20 * kills + 20)) ]; do
    lives=$((lives + 1))
    start log.parts
    if [ $deaths -lt "$kills" ]; then
        watch_until "samples.$lives" $((2 + $(below $((1 + 2 * took / (kills + 1))))))
        victim=$(cat "pid.$(below "$ranks")" 2>/dev/null)
        alive && case $((deaths % 3)) in
        0) kill -KILL "$victim" ;;
        1) kill -USR1 "$job" ;;
        2) kill -TERM "$victim" ;;
        esac && deaths=$((deaths + 1))
    fi
    watch_until "samples.$lives"
    wait "$job"
    status=$?
done
resumed=$(grep -c '"event":"resume"' log.parts)
[ $status = 0 ] && [ "$(summary_field param_hash log.parts)" = "$(summary_field param_hash log.whole)" ]
judge $? "the same run ends with the same bits ($(summary_field param_hash log.parts)) after $deaths kills and signals, $resumed times resumed"
cat samples.[0-9]* | awk '{ if ($3 > memory) memory = $3; if ($4 > open) open = $4 }
    END { printf "# its ranks had at most %d KiB and %d descriptors in all lives\n", memory, open }'
print_plan
exit $bad
