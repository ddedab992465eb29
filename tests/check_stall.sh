#!/bin/sh
# SPDX-License-Identifier: MIT
# Stops one of five training ranks at random moments, and checks that the others name it: in warnings while they wait
# (ISO_STALL_WARN), and in the error that ends the job (ISO_TIMEOUT). Then slows one down, which --stats names, and lets
# one be late at the end of the program. Prints the results as TAP.
# usage: check_stall.sh [WARNINGS [TIME-OUTS]], in the build tree; numbers of trials (3 and 1); uses MPIRUN and
#        MPIRUN_FLAGS
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
. "$root/tests/idx_files.sh"
need_launcher
warnings=${1:-3}
time_outs=${2:-1}
ranks=5
limit=8 # seconds: ranks may start seconds apart on a busy machine
late=10 # seconds after the limit by which the rank is named
enter_work
shown=output
data_set images 400 40 8
export ISO_STALL_WARN=1

below() { # number: a random one
    od -An -N2 -tu2 /dev/urandom | awk -v most="$1" '{ print $1 % most }'
}
now() { date +%s.%N; }
# Whether a condition holds within so many seconds.
comes() { # seconds, condition...
    end=$(now | awk -v more="$1" '{ printf "%.3f", $1 + more }')
    shift
    until "$@"; do
        [ "$(now | awk -v end="$end" '{ print ($1 > end) }')" = 0 ] || return 1
        sleep 0.1
    done
}
trains() { [ -s log ] && grep -q '"event":"epoch"' log; }

# The processes of the ranks write their ids into files.
start_job() { # seconds of ISO_TIMEOUT
    rm -f pid.* log output
    # shellcheck disable=SC2086,SC2016  # flags are several words; $$ belongs to the inner shell
    ISO_TIMEOUT=$1 timeout -k 5 3600 "$launcher" $flags -n $ranks sh -c \
        'echo $$ >pid.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; exec "$@"' sh \
        "$train" --data images --model mlp --epochs 1000000 --threads 1 --quiet --log log --overwrite \
        >output 2>&1 </dev/null &
    job=$!
    comes 60 trains
}
# What was printed since so many lines names this rank, and no other, as stopped.
names() { # lines, rank, pattern before its name
    tail -n +$(($1 + 1)) output >since
    grep -q "$3.*: rank $2 on [^ ]* is stopped by a signal" since
}
names_only() { # lines, rank
    ! tail -n +$(($1 + 1)) output | grep -o 'rank [0-9]* on [^ ]* is stopped' | grep -qv "^rank $2 on "
}
stop_one() {
    rank=$(below $ranks)
    sleep "0.$(below 1000 | awk '{ printf "%03d", $1 }')"
    lines=$(wc -l <output)
    before=$(now)
    kill -STOP "$(cat "pid.$rank")"
}
took() { now | awk -v before="$before" '{ printf "%.1f", $1 - before }'; }

# ---- Warnings: one job, which goes on after each -------------------------------------------------------

good=0
status=0
start_job 0 || good=1
trial=0
while [ $trial -lt "$warnings" ] && [ $good = 0 ]; do
    trial=$((trial + 1))
    stop_one
    comes $((1 + late)) names "$lines" "$rank" 'has waited' && names_only "$lines" "$rank" || good=1
    echo "# trial $trial: rank $rank, named after $(took) s"
    kill -CONT "$(cat "pid.$rank")"
done
result $good "$warnings warnings name the rank that is stopped"
kill "$job" 2>/dev/null
wait "$job" 2>/dev/null

# ---- Time-outs: a job for each ---------------------------------------------------------------------------

good=0
trial=0
while [ $trial -lt "$time_outs" ] && [ $good = 0 ]; do
    trial=$((trial + 1))
    start_job $limit || good=1
    stop_one
    comes $((limit + late)) names "$lines" "$rank" "waited $limit s" && names_only "$lines" "$rank" || good=1
    echo "# trial $trial: rank $rank, named after $(took) s"
    wait "$job" && good=1 # it fails
done
result $good "$time_outs time-outs name the rank that is stopped"

# ---- Stragglers: the last of three ranks is slow in every step, from the first gradient on ---------------

stats() { # environment of the last rank
    status=0
    set -- "$@" "$train" --data images --model mlp --steps 30 --batch 8 --threads 1 --stats --log log --overwrite
    # shellcheck disable=SC2086,SC2016
    timeout -k 5 60 "$launcher" $flags -n 3 sh -c \
        '[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 2 ] && export "$1"; shift; exec "$@"' sh "$@" \
        >output 2>&1 </dev/null || status=$?
}
${MPICC:-mpicc} -shared -fPIC -DSLOW_AT=iso_loader_next -DSLOW_MS=100 -o slow.so "$root/tests/slow_rank.c" || exit 1
stats LD_PRELOAD="$work/slow.so"
[ $status = 0 ] && grep -q '^straggler: rank 2 on .* from the first, fc2+fc3 on; the others wait [1-9][0-9.]* ms' output &&
    [ "$(grep -c '"event":"rank"' log)" = 3 ] && grep '"event":"straggler"' log | grep -q '"rank":2,.*"layers":"fc2+fc3"'
result $? "--stats names the rank that is slow in every step, and what it costs"

# ---- The end: the last of three ranks is late after its last step ------------------------------------------

names_late() { # program, arguments...
    rm -f output
    # shellcheck disable=SC2086,SC2016
    timeout -k 5 3600 "$launcher" $flags -n 3 sh -c \
        '[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 2 ] && export LD_PRELOAD="$1"; shift; exec "$@"' sh "$work/late.so" "$@" \
        >output 2>&1 </dev/null &
    job=$!
    comes 60 grep -q 'rank 0 of 3 has waited .* for the end of the program: rank 2 on [^ ]* is late' output
    named=$?
    kill "$job" 2>/dev/null
    wait "$job" 2>/dev/null
    return $named
}
${MPICC:-mpicc} -shared -fPIC -DSLOW_AT=iso_loss_destroy -DSLOW_MS=120000 -o late.so "$root/tests/slow_rank.c" || exit 1
names_late "$train" --data images --model mlp --steps 3 --batch 8 --threads 1 --quiet
result $? "train names the rank that does not come to the end of the program"
names_late "$programs/mnist" images
result $? "mnist names the rank that does not come to the end of the program"

print_plan
