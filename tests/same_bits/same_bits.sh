#!/bin/bash
# SPDX-License-Identifier: MIT
# Compares what two builds compute, to the last bit: trains the same networks and arrays with both, on 1 to 4 ranks,
# and prints every case whose results differ. What the first build gave is kept in its tree for the next comparison.
# usage: same_bits.sh OLD NEW [quick|full]; OLD and NEW are build trees; quick (the default) takes a few minutes
#        JOBS sets how many cases run at a time (2). The exit status is 1 if any case differs or gives no result.
set -u
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
. "$root/tests/test_env.sh"
export ISO_TIMEOUT=${ISO_TIMEOUT:-100}
flags=${MPIRUN_FLAGS---oversubscribe --bind-to none}

fail() { # message
    echo "same_bits: $1" >&2
    exit 2
}

# ---- One case ---------------------------------------------------------------------------------------
# A case is a line: RANKS ENVIRONMENT PROGRAM ARGUMENT...; ENVIRONMENT is A=B,C=D or a dash.
# PROGRAM resume goes on with a state that the old build has saved, and names it first.

on_ranks() { # ranks, command...
    local ranks=$1
    shift
    # shellcheck disable=SC2086  # flags are several words
    timeout -k 5 300 "${MPIRUN:-mpirun}" $flags -n "$ranks" "$@" </dev/null 2>"$scratch/errors"
}

# Builds of before had their programs in examples/.
train_of() { # build
    if [ -x "$1/bin/train" ]; then echo "$1/bin/train"; else echo "$1/examples/train"; fi
}

# Prints what a case computes.
run_train() { # build, ranks, arguments...
    local build=$1 ranks=$2
    shift 2
    on_ranks "$ranks" "$(train_of "$build")" --quiet --log "$scratch/log" "$@" >"$scratch/output"
    echo "exit status $?"
    sed -n 's/.*"param_hash":"\([0-9a-f]*\)".*/\1/p' "$scratch/log" 2>/dev/null
}

# --resume goes on from a copy: the state must still be there for the other build.
run_resumed() { # build, ranks, set, arguments...
    local build=$1 ranks=$2 set=$3
    shift 3
    cp "$work/saved/$set"* "$scratch/"
    run_train "$build" "$ranks" --resume "$scratch/$set" --checkpoint "$scratch/$set" "$@"
}

run_random() { # build, program, ranks, arguments...
    local program=$1/same_bits/$2 ranks=$3
    shift 3
    on_ranks "$ranks" "$program" "$@"
    echo "exit status $?"
}

run_case() { # build, line
    local build=$1 ranks environment program
    read -r ranks environment program rest <<<"$2"
    scratch=$(mktemp -d "$work/case.XXXXXX")
    (
        # shellcheck disable=SC2086,SC2163  # several words
        [ "$environment" = - ] || export ${environment//,/ }
        # shellcheck disable=SC2086  # several words
        case $program in
        train) run_train "$build" "$ranks" $rest ;;
        resume) run_resumed "$build" "$ranks" $rest ;;
        *) run_random "$build" "$program" "$ranks" $rest ;;
        esac
    )
    rm -rf "$scratch"
}

# What the old build gives is looked up.
kept_case() { # line
    local file
    file=$old/same_bits/$(cat "$old/same_bits/identity")/$(echo "$1" | cksum | tr -d ' ')
    mkdir -p "$(dirname "$file")"
    [ -s "$file" ] || run_case "$old" "$1" >"$file"
    cat "$file"
}

compare_case() { # line
    local before after
    before=$(kept_case "$1")
    after=$(run_case "$new" "$1")
    if [ "$before" != "$after" ]; then
        printf 'differs: %s\n  old: %s\n  new: %s\n' "$1" "${before//$'\n'/, }" "${after//$'\n'/, }"
    elif ! echo "$after" | grep -qE '[0-9a-f]{16}$'; then
        printf 'no result: %s\n  %s\n' "$1" "${after//$'\n'/, }"
    fi
}

if [ "${1:-}" = --case ]; then
    old=$2 new=$3 work=$4
    compare_case "$5" >"$(mktemp "$work/verdict.XXXXXX")"
    exit
fi

# ---- Cases ------------------------------------------------------------------------------------------

short="--steps 10 --batch 16 --eval-every 7"

# What every commit should pass.
quick_train() {
    local sync
    for sync in lazy blocking explicit; do
        echo "2 - train --model mlp $short --sync $sync"
        echo "3 - train --model cnn $short --sync $sync --bucket-mb 0"
    done
    echo "1 - train --model cnn $short"
    echo "4 ISO_NODE_COLLECTIVE=mpi train --model lenet $short --accumulate 2"
    echo "3 ISO_NODE_COLLECTIVE=mpi train --model mlp $short --wire bf16-feedback --optimizer sgd"
    echo "4 ISO_RANKS_PER_NODE=2 train --model mlp $short --sync daso --period 3 --wait 2"
    echo "3 ISO_RANKS_PER_NODE=2 train --model mlp $short --sync daso --period 2 --wait 1 --state average"
    echo "2 ISO_RANKS_PER_NODE=1 train --model mlp $short --sync daso --period 4 --wait 4 --wire f32 --merge heat"
    echo "2 - train --model mlp $short --sync localsgd --period 3"
    echo "2 - train --model mlp $short --sync postlocal --period 3 --warmup-steps 4"
    echo "4 ISO_RANKS_PER_NODE=2 train --model mlp --epochs 6 --batch 2048 --sync daso-heat"
    echo "2 - train --model resnet18 --test-limit 64 --steps 3 --batch 4 --sync-batchnorm"
}

full_train() {
    local ranks model sync wire nodes variant
    for ranks in 1 2 3 4; do
        for model in mlp cnn lenet; do
            for sync in lazy blocking explicit; do
                echo "$ranks - train --model $model $short --sync $sync"
            done
        done
        for variant in "--accumulate 2" "--accumulate 3 --sync blocking" "--bucket-mb 0" "--bucket-mb 0.05" \
            "--bucket-mb 64" "--dtype f64" "--clip-grad-norm 0.1" "--progress poll" "--progress off"; do
            echo "$ranks - train --model mlp $short $variant"
            echo "$ranks ISO_NODE_COLLECTIVE=mpi train --model mlp $short $variant"
        done
    done
    for ranks in 2 3 4; do
        for wire in bf16 f16 bf16-feedback noop; do
            echo "$ranks - train --model mlp $short --wire $wire"
            echo "$ranks ISO_NODE_COLLECTIVE=mpi train --model cnn $short --wire $wire --accumulate 2"
            echo "$ranks ISO_RANKS_PER_NODE=2 train --model mlp $short --wire $wire --sync explicit"
        done
        for nodes in 1 2; do
            for variant in "" "--wait 0" "--wait 3" "--merge heat" "--state average" "--state reset" "--wire f32" \
                "--wire f16" "--local-skip 2" "--unit rank" "--warmup-steps 0 --cooldown-steps 0" \
                "--accumulate 2" "--optimizer sgd --momentum 0.9" "--model cnn"; do
                case $variant in *--wait*) ;; *) variant="--wait 2 $variant" ;; esac
                case $variant in *--model*) ;; *) variant="--model mlp $variant" ;; esac
                echo "$ranks ISO_RANKS_PER_NODE=$nodes train $short --sync daso --period 3 $variant"
            done
            echo "$ranks ISO_RANKS_PER_NODE=$nodes train --model mlp --epochs 6 --batch 2048 --sync daso-heat"
            echo "$ranks ISO_RANKS_PER_NODE=$nodes train --model mlp $short --sync localsgd --period 2"
            echo "$ranks ISO_RANKS_PER_NODE=$nodes train --model mlp $short --sync postlocal --period 2 --warmup-steps 3"
        done
    done
    for variant in sgd adamw adadelta adagrad rmsprop lamb; do
        echo "2 - train --model mlp $short --optimizer $variant"
    done
    echo "2 - train --model cnn $short --dropout"
    echo "2 - train --model resnet18 --test-limit 64 --steps 3 --batch 4"
    echo "3 - train --model resnet18 --test-limit 64 --steps 3 --batch 4 --sync blocking"
}

# Emulated GPUs: through the host's memory, by NCCL, which wants a GPU for each rank, and by both in shards.
gpu_cases() { # seeds
    local seed environment device
    for environment in ISO_NODE_COLLECTIVE=mpi ISO_NODE_COLLECTIVE=shm \
        ISO_NODE_COLLECTIVE=nccl,ISO_EMULATED_GPUS=4 \
        ISO_NODE_COLLECTIVE=nccl,ISO_EMULATED_GPUS=4,ISO_RANKS_PER_NODE=2 \
        ISO_NODE_COLLECTIVE=mpi,ISO_RANKS_PER_NODE=2; do
        case $environment in *GPUS*) device=cuda ;; *) device=cuda:0 ;; esac
        for seed in $(seq 1 "$1"); do
            echo "$((seed % 2 * 2 + 2)) $environment random_modules $seed $device"
        done
        echo "2 $environment train --model mlp --steps 4 --batch 16 --device $device"
        echo "4 $environment train --model mlp --steps 4 --batch 16 --device $device --bucket-mb 0"
    done
}

random_cases() { # seeds
    local seed environment
    for seed in $(seq 1 "$1"); do
        environment=-
        if [ $((seed % 3)) = 0 ]; then environment=ISO_RANKS_PER_NODE=2; fi
        if [ $((seed % 5)) = 0 ]; then environment=ISO_NODE_COLLECTIVE=mpi; fi
        if [ $((seed % 15)) = 0 ]; then environment=ISO_NODE_COLLECTIVE=mpi,ISO_RANKS_PER_NODE=2; fi
        echo "$((seed / 2 % 4 + 1)) $environment random_arrays $seed"
        echo "$((seed / 2 % 4 + 1)) $environment random_modules $seed"
    done
}

# States saved by the old build: a line SET RANKS ENVIRONMENT ARGUMENT... for each.
saved_states() { # quick or full
    local long="--model mlp --steps 12 --batch 16"
    echo "lazy2 2 - $long"
    echo "daso4 4 ISO_RANKS_PER_NODE=2 $long --sync daso --period 3 --wait 2"
    [ "$1" = full ] || return 0
    echo "lazy1 1 - $long --optimizer lamb"
    echo "feedback3 3 - $long --wire bf16-feedback --optimizer sgd --momentum 0.9"
    echo "cnn2 2 - --model cnn --dropout --steps 12 --batch 8 --accumulate 2"
    echo "daso3 3 ISO_RANKS_PER_NODE=2 $long --sync daso --period 4 --wait 3 --state average"
    echo "local2 2 - $long --sync localsgd --period 5"
    echo "heat4 4 ISO_RANKS_PER_NODE=2 --model mlp --epochs 6 --batch 2048 --sync daso-heat"
    echo "norm2 2 - --model resnet18 --test-limit 64 --steps 4 --batch 4"
}

# Of the two sets that a run leaves, the newer says that it is finished: goes on from the other.
save_states() { # quick or full
    local set ranks environment arguments every
    mkdir -p "$work/saved"
    while read -r set ranks environment arguments; do
        case $set in norm* | heat*) every=2 ;; *) every=5 ;; esac
        (
            scratch=$(mktemp -d "$work/save.XXXXXX")
            # shellcheck disable=SC2086,SC2163  # several words
            [ "$environment" = - ] || export ${environment//,/ }
            # shellcheck disable=SC2086  # several words
            run_train "$old" "$ranks" $arguments --checkpoint "$work/saved/$set" --checkpoint-every $every \
                >"$scratch/result"
        )
        drop_newest "$work/saved/$set"
        echo "$ranks $environment resume $set $arguments --checkpoint-every $every"
    done < <(saved_states "$1")
}

drop_newest() { # checkpoint
    local steps
    mapfile -t steps < <(find "$(dirname "$1")" -maxdepth 1 -name "$(basename "$1").step-*" |
        sed 's/.*\.step-\([0-9]*\).*/\1/' | sort -un)
    [ "${#steps[@]}" -ge 2 ] || fail "the old build has not saved two sets of $1"
    find "$(dirname "$1")" -maxdepth 1 -name "$(basename "$1").step-*${steps[-1]}*" -delete
}

# ---- Both builds --------------------------------------------------------------------------------------

prepare() { # build
    local source program
    [ -e "$1/.libs/libisotherm.so" ] && [ -x "$(train_of "$1")" ] || fail "$1 is not a build tree with its programs"
    source=$(sed -n 's/^abs_top_srcdir = //p' "$1/Makefile")
    mkdir -p "$1/same_bits"
    for program in random_arrays random_modules; do
        "${MPICC:-mpicc}" -std=c11 -O1 -D_POSIX_C_SOURCE=200809L -I"$source/include" -I"$1/include" \
            "$here/$program.c" -o "$1/same_bits/$program" -L"$1/.libs" -lisotherm -Wl,-rpath,"$1/.libs" -lm ||
            fail "$program does not compile against $1"
    done
    cat "$1/.libs/libisotherm.so" "$here"/*.[ch] "$here/same_bits.sh" | cksum | tr -d ' ' >"$1/same_bits/identity"
}

is_emulated() { # build
    grep -q -e '--with-cuda=emulated' "$1/config.log"
}

[ $# -ge 2 ] || fail "usage: same_bits.sh OLD NEW [quick|full]"
old=$(cd "$1" && pwd) && new=$(cd "$2" && pwd) || fail "OLD and NEW are build trees"
extent=${3:-quick}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prepare "$old"
prepare "$new"
case $extent in
quick) quick_train && random_cases 60 ;;
full) quick_train && full_train && random_cases 300 ;;
*) fail "quick or full, not $extent" ;;
esac >"$work/cases"
save_states "$extent" >>"$work/cases"
if is_emulated "$old" && is_emulated "$new"; then
    gpu_cases "$([ "$extent" = full ] && echo 20 || echo 3)" >>"$work/cases"
fi
tr '\n' '\0' <"$work/cases" | xargs -0 -n 1 -P "${JOBS:-2}" bash "$here/same_bits.sh" --case "$old" "$new" "$work"
cat "$work"/verdict.*
echo "$(wc -l <"$work/cases") cases, $(cat "$work"/verdict.* | grep -cE '^(differs|no result):') of them differ"
! cat "$work"/verdict.* | grep -q .
