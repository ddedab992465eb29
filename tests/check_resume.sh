#!/bin/sh
# Kills training runs at random points, resumes them until they are done, and compares the parameters with those of a
# run that nobody killed. Prints the results as TAP.
# usage: check_resume.sh, in the build tree; uses MPIRUN, MPIRUN_FLAGS, and ISO_TEST_SEED, the seed of the random points
set -u
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
. "$root/tests/test_env.sh"
. "$root/tests/idx_files.sh"
launcher=${MPIRUN:-mpirun}
flags=${MPIRUN_FLAGS---oversubscribe --bind-to none}
if [ "$launcher" = no ]; then
    echo "1..0 # SKIP configure found no MPI launcher"
    exit 0
fi
train=$PWD/examples/train
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
data_set images 400 40 8
KILLS=5 # of each study
seed=${ISO_TEST_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
points=0

echo "1..12"
echo "# ISO_TEST_SEED=$seed"

# ---- Helpers ----

result() { # 0 for good, what should hold
    if [ "$1" = 0 ]; then
        echo "ok - $2"
    else
        echo "not ok - $2"
        sed 's/^/# /' output
    fi
}

# Starts a run in the background: its launcher is $job, and each rank leaves a file pid.NUMBER.
start() { # ranks, arguments...
    rm -f pid.*
    start_ranks=$1
    shift
    # shellcheck disable=SC2086,SC2016  # flags are several words; $$ belongs to the inner shell
    timeout -k 5 60 "$launcher" $flags -n "$start_ranks" sh -c 'echo $$ >pid.$$; exec "$@"' sh \
        "$train" --data images --quiet "$@" >output 2>&1 </dev/null &
    job=$!
}
finish() {
    status=0
    wait "$job" || status=$?
}
kill_ranks() {
    for file in pid.*; do
        [ -f "$file" ] && kill -9 "${file#pid.}" 2>/dev/null
    done
}
field() { # key, file: the value in the summary
    sed -n 's/.*"event":"summary".*"'"$1"'":"\{0,1\}\([^,"}]*\).*/\1/p' "$2"
}
# The parameters at the end, and what the run says of itself.
outcome() { # log
    for key in param_hash train_loss test_loss test_accuracy; do
        field $key "$1"
    done
}
# Number $1 of the random numbers of the seed, between 0 and $2.
random() {
    awk -v seed="$seed" -v n="$1" -v most="$2" \
        'BEGIN { srand(seed); for (i = 0; i < n; i++) x = rand(); printf "%.3f\n", x * most }'
}
milliseconds() {
    echo $(($(date +%s%N) / 1000000))
}

# Waits until a command of the shell is true, or the run that was started ends.
wait_until() { # command...
    waited=0
    until "$@" || ! kill -0 "$job" 2>/dev/null || [ $waited -ge 1500 ]; do
        sleep 0.02
        waited=$((waited + 1))
    done
}
newest() { # the shared file of the newest set
    find . -name 'state.step-????????????' | sort | tail -n 1
}
saved_since() { # the newest set before
    [ "$(newest)" != "$1" ]
}

# Lets a run train until a random point, or until its end. Every other time that point lies behind
# its first save, so that the run moves on.
live_and_die() { # log, longest life in seconds, ranks, arguments...
    points=$((points + 1))
    log=$1
    life=$(random $points "$2")
    die_ranks=$3
    shift 3
    before=$(newest)
    start "$die_ranks" "$@" --log "$log"
    wait_until test -e "$log"
    [ $((points % 2)) = 1 ] && wait_until saved_since "$before"
    sleep "$life"
    kill_ranks
    finish
}

# A run that is left alone, then one with the same arguments that is not.
study() { # name, ranks, arguments...
    name=$1
    ranks=$2
    shift 2
    rm -f state* log*
    set -- "$@" --checkpoint state --checkpoint-every 7
    start "$ranks" "$@" --log log.whole
    wait_until test -e log.whole
    began=$(milliseconds)
    finish
    longest=$(awk -v t=$(($(milliseconds) - began)) 'BEGIN { print t / 5000 }')
    expected=$(outcome log.whole)
    rm -f state*
    good=$status
    kills=0
    lives=0
    while [ "$good" = 0 ] && [ $kills -lt $KILLS ] && [ $lives -lt $((4 * KILLS)) ]; do
        lives=$((lives + 1))
        # shellcheck disable=SC2046  # none or two words
        live_and_die "log.$lives" "$longest" "$ranks" "$@" $([ -n "$(newest)" ] && echo --resume state)
        grep -q '^train: ' output && good=1 # it failed by itself
        [ $status != 0 ] && kills=$((kills + 1))
        [ $status != 0 ] && continue
        # It was done before it could be killed, or before it began: once more from the beginning.
        [ -e "log.$lives" ] || cp "log.$((lives - 1))" "log.$lives"
        [ "$expected" = "$(outcome "log.$lives")" ] || good=1
        rm -f state*
    done
    # shellcheck disable=SC2046
    start "$ranks" "$@" --log log.last $([ -n "$(newest)" ] && echo --resume state)
    finish
    # A run that was killed between its end and its exit has nothing left to do.
    [ -e log.last ] || cp "log.$lives" log.last
    [ $status = 0 ] && [ $kills = $KILLS ] && [ -n "$expected" ] || good=1
    [ "$expected" = "$(outcome log.last)" ] || good=1
    echo "# $name: $lives lives of at most $longest s, $(cat log.* | grep -c '"resume"') resumed"
    result "$good" "$name: killed $kills times, a run ends with the same parameters and figures"
}

refused() { # what differs, pattern of the sentence, ranks, arguments...
    name=$1
    sentence=$2
    shift 2
    start "$@"
    finish
    good=0
    [ $status != 0 ] && [ $status != 124 ] || good=1
    [ "$(grep -c '^train: ' output)" = 1 ] && grep -qE "^train: .*$sentence" output || good=1
    result $good "refuses to resume with $name"
}

# ---- Studies ----

study lazy 2 --sync lazy --dropout --batch 8 --epochs 5 --shift 2 --flip 0.3
study accumulate 2 --sync lazy --accumulate 3 --model mlp --batch 5 --epochs 9
export ISO_RANKS_PER_NODE=2
study daso 3 --sync daso --wait 3 --model mlp --batch 6 --epochs 5
study daso-heat 3 --sync daso-heat --model mlp --batch 6 --epochs 6
study localsgd 2 --sync localsgd --model mlp --batch 8 --epochs 5 --sampler overlap

# ---- What cannot go on ----

cp log.last log.before
start 2 --sync localsgd --model mlp --batch 8 --epochs 5 --sampler overlap --checkpoint state --checkpoint-every 7 \
    --resume state --log log.last
finish
[ $status = 0 ] && cmp -s log.last log.before
result $? "a run that is done is left as it is"
set -- --sync localsgd --model mlp --epochs 5 --sampler overlap --resume state
refused "another number of ranks" 'saved by 2 ranks and this run has 3' 3 "$@" --batch 8
refused "another batch size" 'trained with --batch 8 and this run has --batch 9' 2 "$@" --batch 9
refused "another order of samples" 'trained with --seed 1 and this run has --seed 2' 2 "$@" --batch 8 --seed 2
refused "other shares of ranks" 'trained with --sampler overlap and this run has --sampler pad' 2 "$@" \
    --batch 8 --sampler pad
refused "other images" 'trained with --shift 0 and this run has --shift 1' 2 "$@" --batch 8 --shift 1
refused "another network" 'cannot resume with --model cnn,.*state.step.* another model' 2 --sync localsgd --epochs 5 --resume state --batch 8
