#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs the example programs with good and with bad input, and prints the results as TAP.
# usage: check_programs.sh, in the build tree; uses MPIRUN and MPIRUN_FLAGS
# Not -e: what fails here is a result, not the end.
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
. "$root/tests/idx_files.sh"
need_launcher
build=$PWD
mnist=$PWD/bin/mnist
mnist_daso=$PWD/bin/mnist-daso
own_arrays=$PWD/bin/own-arrays
probe=$PWD/tests/error_probe
export ISO_DIGITS=12000 # what all processes would generate anew
enter_work
out=$work/out # what programs write

# ---- Helpers ----

# Runs with an empty folder for what it writes.
run_anew() { # ranks, program, arguments...
    rm -rf "$out"
    mkdir "$out"
    run "$@"
}

# Bad input: refused in time, with one sentence, no dump, and no file.
refused() { # ranks, what is wrong, pattern of the sentence, arguments...
    ranks=$1
    name=$2
    sentence=$3
    shift 3
    # Beside what the test gives itself, as an option is given once.
    for kind in log trace checkpoint; do
        case " $* " in *" --$kind "*) ;; *) set -- --$kind "$out/$kind" "$@" ;; esac
    done
    run_anew "$ranks" "$train" "$@"
    good=0
    has_failed && one_sentence train ".*$sentence" stderr && ! has_crashed stderr || good=1
    [ -z "$(ls -A "$out")" ] || good=1
    result "$good" "refused with one sentence: $name"
}

# ---- Command line ----

refused 2 "an unknown option" 'unknown option --frobnicate' --frobnicate 3
refused 2 "an abbreviated option" 'unknown option --epoch: did you mean --epochs\?' --epoch=3
refused 0 "a misspelt option" 'unknown option --chekpoint-evry: did you mean --checkpoint-every\?' --chekpoint-evry 3
refused 2 "an option twice" '--seed is given twice' --seed 3 --seed=3
refused 0 "a switch twice" '--quiet is given twice' --quiet --quiet
refused 0 "two lengths" '--steps replaces --epochs: give only one of them' --epochs 2 --steps 3
refused 0 "phases that are longer than the run" '--warmup 0.7 and --cooldown 0.7 are more than the whole run' \
    --sync daso --warmup .7 --cooldown .7
refused 2 "phases of more steps than the run" '--warmup-steps 30 and --cooldown-steps 11 are more than the 40 steps' \
    --sync daso --model mlp --steps 40 --warmup-steps 30 --cooldown-steps 11
refused 2 "a wait that is longer than the run" '--wait 99999 is too long: no exchange would be merged in the 38 steps' \
    --sync daso --model mlp --steps 40 --period 99999 --wait 99999
refused 0 "a wait after which the run is over" '--wait 25 .* in the 48 steps between' \
    --sync daso --model mlp --steps 50 --period 25 --wait 25
refused 2 "a wait in phases that the library rounds" '--wait 93 .* in the 93 steps between' \
    --sync daso --model mlp --steps 100 --warmup .07 --cooldown 0 --period 93 --wait 93
refused 2 "an argument that is no option" '"data" is not an option' data
refused 0 "an option without its value" '--epochs needs a value' --epochs
refused 0 "an option in place of a value" '--model needs a value' --model --quiet
refused 0 "a value of a switch" '--quiet takes no value' --quiet=1
refused 0 "an unknown model" '--model resnet is not supported: give mlp\|cnn' --model resnet
refused 0 "an unknown optimizer" '--optimizer newton is not supported' --optimizer newton
refused 0 "an unknown schedule" '--schedule up is not supported' --schedule=up
refused 0 "an unknown sync mode" '--sync never is not supported' --sync never
refused 0 "a device that is not there" 'unknown device "tpu": known devices are cpu, cuda' --device tpu
refused 0 "an element type that is not there" '--dtype i32 is not supported: give f32' --dtype i32
refused 0 "no epochs" '--epochs 0: give a whole number' --epochs 0
refused 0 "a batch that is no whole number" '--batch 1.5: give a whole number' --batch 1.5
refused 0 "an update of no batch" '--accumulate 0: give a whole number' --accumulate 0
refused 0 "a negative learning rate" '--lr -1: give a number' --lr -1
refused 0 "a learning rate that is no number" '--lr nan: give a number' --lr nan
refused 0 "a number with more after it" '--seed 1x: give a whole number' --seed 1x
run_anew 0 "$train" --log "$out/x" --trace "$out/x" --data nowhere
[ "$status" != 0 ] && [ "$(grep -c '^train: .*two outputs would go to' stderr)" = 1 ] && [ -z "$(ls -A "$out")" ]
result $? "refused with one sentence: one file for two outputs"
refused 0 "two origins of parameters" '--load and --resume both say' --load a --resume b --data nowhere
refused 1 "ranks with different options" 'started with .*--seed 2 where rank 0 has .*--seed 1: .*same options' \
    --model mlp : -n 1 "$train" --model mlp --seed 2
refused 0 "momentum without sgd" '--momentum needs --optimizer sgd.rmsprop, but --optimizer is adam' --momentum 0.9
refused 0 "dropout without a layer for it" '--dropout needs --model cnn' --model mlp --dropout
refused 0 "batch norms of a model without any" '--sync-batchnorm needs --model resnet18' --sync-batchnorm
refused 0 "an option of daso" '--wait needs --sync daso.streaming-diloco.gossip.tournament, but --sync is lazy' --wait 4
refused 0 "an option of several modes" '--period needs --sync daso.localsgd.postlocal.slowmo.diloco' --period 4
refused 0 "an option of daso-heat" '--warmup-epochs needs --sync daso-heat, but --sync is daso' \
    --sync daso --warmup-epochs 1
refused 0 "an option of daso for local SGD" '--merge needs --sync daso' --sync localsgd --merge heat
refused 0 "an option of a policy" '--max-divergence needs --policy adaptive, but --policy is fixed' \
    --sync daso --max-divergence 0.1
refused 0 "a wait that is no number" '--wait soon: give a whole number' --sync daso --wait soon
refused 0 "auto where it means nothing" '--local-skip auto: give a whole number' --sync daso --local-skip auto
refused 0 "a wait longer than the period" '--wait 5 is longer than --period 4' --sync daso --period 4 --wait 5
refused 0 "two options that say the same" '--warmup-steps replaces --warmup: give only one of them' --sync daso \
    --warmup 0.1 --warmup-steps 3
refused 2 "math of a GPU on the CPU" '--math tf32 needs a GPU, but --device is cpu' --math tf32 --data nowhere
refused 2 "math that rounds f64" '--math tf32 rounds f32: remove' --dtype f64 --math tf32 --device cuda --data nowhere
refused 2 "rounding of f64" '--wire bf16 needs f32: remove' --dtype f64 --wire bf16 --data nowhere
# Whatever the data are, and so before they are looked for.
refused 2 "gradients' ways for parameters" '--wire noop is not supported: give f32.bf16.f16.int8.fp8.int4.topk, or --sync blocking.lazy.explicit' \
    --sync daso --wire noop --data nowhere
refused 0 "gradients' ways with a memory for parameters" '--wire bf16-feedback is not supported: give f32.bf16.f16.int8.fp8.int4.topk, or --sync blocking' \
    --sync daso --wire bf16-feedback --data nowhere
refused 0 "a policy beyond its limit" '--period 100 is above --max-period 64, the limit of --policy adaptive' \
    --sync daso --policy adaptive --period 100 --data nowhere
refused 0 "an aim of no distance at all" '--max-divergence 0: give a number' \
    --sync daso --policy adaptive --max-divergence 0 --data nowhere
refused 0 "a wait beyond the limit" '--wait 9 is above --max-period 8' \
    --sync daso --policy plateau --wait 9 --max-period 8 --data nowhere
refused 0 "a limit without a policy" '--max-period needs --policy plateau|adaptive, but --policy is fixed' \
    --sync daso --max-period 4
refused 0 "a share above 1" '--cooldown 2: give a number from 0 to 1' --sync daso --cooldown 2

run_anew 2 "$train" --model mlp --optimizer sgd --lr 1e6 --steps 20 --quiet --checkpoint "$out/checkpoint"
good=0
has_failed || good=1
grep -q '^train: the training diverged: .* lower --lr' stderr || good=1
[ -z "$(ls -A "$out")" ] || good=1
result "$good" "a training that diverges fails, and is not saved"

run_anew 2 "$train" --model mlp --optimizer sgd --lr 1e6 --steps 20 --quiet --finite stop
has_failed && one_sentence train 'the gradient of step [0-9]+ is NaN or infinite, first in [^ ]+: .* --finite skip$' stderr
result $? "--finite stop names the step whose gradient is not finite"
run_anew 2 "$train" --model mlp --optimizer sgd --lr 1e6 --accumulate 2 --steps 20 --finite skip --log "$out/log"
[ "$status" = 0 ] && grep -q "^no update in $(field skipped_steps "$out/log") steps (--finite skip)$" stdout &&
    [ "$(grep -c '"event":"skip"' "$out/log")" = "$(field skipped_steps "$out/log")" ]
result $? "--finite skip goes on, and tells how many steps it skipped"
digits=$ISO_DIGITS
ISO_DIGITS=600 # three steps an epoch
run_anew 2 "$train" --model mlp --optimizer sgd --lr 1e6 --momentum 0.999 --batch 100 --epochs 4 --finite skip --log "$out/log"
ISO_DIGITS=$digits
[ "$status" = 0 ] && [ "$(field skipped_steps "$out/log")" -ge 6 ] && grep -q '"event":"epoch","epoch":3.*"train_loss":null' "$out/log"
result $? "--finite skip goes on after an epoch in which it skipped all steps"
run_anew 2 "$train" --model mlp --optimizer sgd --lr 1e6 --steps 20 --finite skip --skip-loss 0.9 --skip-window 2 \
    --log "$out/log"
[ "$status" = 0 ] && grep -q '^no update in [0-9]* steps (outliers, --finite skip)$' stdout &&
    grep -q '"event":"skip".*"loss_z":1}' "$out/log" && grep '"event":"skip"' "$out/log" | tail -1 | grep -q '"loss_z":null}'
result $? "a step skipped for its gradient has no score of an earlier step"
set -- --model mlp --steps 60 --skip-window 16
run_anew 2 "$train" "$@" --skip-loss 1.3 --skip-norm 1.3 --accumulate 2 --log "$out/log"
skips=$(field skipped_steps "$out/log")
[ "$status" = 0 ] && [ "$skips" -gt 0 ] && [ "$skips" -lt 30 ] &&
    [ "$(grep -c '"event":"skip"' "$out/log")" = "$skips" ] && grep -q "^no update in $skips steps* (outliers)$" stdout &&
    grep '"event":"skip"' "$out/log" | sed 's/.*"step":\([0-9]*\),"loss_z":\([^,]*\),"norm_z":\([^,}]*\).*/\1 \2 \3/' |
    awk '!($1 > 16 && ($2 > 1.3 || $3 > 1.3)) { bad = 1 } END { exit bad }'
result $? "--skip-loss leaves out updates of steps whose loss or norm is an outlier, and tells why"
refused 0 "a distance that no outlier has" '--skip-norm 5 is out of reach: no value is more than 3.87 deviations' \
    "$@" --skip-norm 5
refused 0 "outliers beside overflows" '--skip-loss cannot be combined with --grad-scaler' "$@" --skip-loss 2 --grad-scaler
refused 2 "left out updates that a schedule counts" '--skip-norm cannot be combined with --sync daso-heat' \
    --skip-norm 2 --sync daso-heat --data nowhere
refused 2 "skipped updates that a schedule counts" '--finite skip cannot be combined with --sync daso-heat' \
    --finite skip --sync daso-heat --data nowhere

if [ "$("$train" --device cuda --model mlp --steps 1 2>&1 | grep -c '^train: .*this build has no CUDA')" = 1 ]; then
    refused 0 "a device that this build lacks" 'device cuda:0: this build has no CUDA: use device cpu' --device cuda:0
    refused 0 "a device that nobody knows" 'known devices are cpu, cuda .not in this build.' --device gpu
else
    echo "ok - a device that this build lacks # SKIP it has all" | tee -a results
    echo "ok - a device that nobody knows # SKIP it has all" | tee -a results
fi

run_anew 1 "$train" --model mlp --optimizer sgd --lr 1e6 --steps 60
[ "$status" != 0 ] && [ "$(grep -c '^train: ' stderr)" = 1 ] && grep -q '^epoch 1/1 loss nan ' stdout
result $? "a loss that is no number has no sign"
grep -q '^training  1 rank on 1 node x 64 samples, 60 steps, ' stdout
result $? "one rank and one node are told in the singular"
run_anew 2 "$train" --model mlp --optimizer adam --lr 1e6 --steps 60 --quiet
[ "$status" = 0 ] && [ "$(wc -l <stderr)" = 1 ] &&
    grep -q '^train: warning: the training diverged: the loss of its last .* is .*: try a lower --lr$' stderr
result $? "a training whose loss is far above that of guessing ends with a warning"
run_anew 2 "$train" --model mlp --optimizer sgd --lr 1e6 --steps 40 --quiet --sync daso --wait 1
[ "$status" != 0 ] && [ "$(grep -c '^train: ' stderr)" = 1 ] &&
    grep -q '^train: the training diverged in step [0-9]*: .*lower learning rate$' stderr
result $? "a training that diverges under daso says so"

name="ranks that share a GPU are told so once"
if "$train" --device cuda:0 --model mlp --steps 1 --quiet >stdout 2>&1; then
    run_anew 2 "$train" --device cuda:0 --model mlp --steps 1 --quiet
    [ "$status" = 0 ] && [ "$(grep -c 'share' stderr)" = 1 ]
    result $? "$name"
else
    echo "ok - $name # SKIP there is no GPU" | tee -a results
fi

# ---- Data ----

data_set good 96 40 8
data_set two 2 2 8
data_set small 96 40 5
data_set magic 96 40 8
printf 'IDX!' >magic/train-images-idx3-ubyte
data_set counts 96 40 8
labels 95 >counts/train-labels-idx1-ubyte
data_set short 96 40 8
head -c 1000 good/train-images-idx3-ubyte >short/train-images-idx3-ubyte
data_set zipped 96 40 8
gzip zipped/train-images-idx3-ubyte
head -c 60 zipped/train-images-idx3-ubyte.gz >part
mv part zipped/train-images-idx3-ubyte.gz
data_set mixed 96 40 8
images 40 7 >mixed/t10k-images-idx3-ubyte
mkdir empty
data_set piped 96 40 8
rm piped/train-images-idx3-ubyte
mkfifo piped/train-images-idx3-ubyte

refused 2 "a missing folder" 'no data folder nowhere' --data nowhere
refused 2 "a folder without data" 'folder empty lacks' --data empty
refused 2 "a pipe in place of a file" 'piped/train-images-idx3-ubyte: it is not a regular file' --data piped
refused 2 "a wrong magic number" 'magic/train-images-idx3-ubyte' --data magic
refused 2 "truncated images" 'short/train-images-idx3-ubyte' --data short
refused 2 "truncated gzip" 'zipped/train-images-idx3-ubyte.gz' --data zipped
refused 2 "labels and images of different counts" '96 images but .* 95 labels' --data counts
refused 2 "test images of another size" 'do not belong together' --data mixed
refused 3 "more ranks than samples" '3 ranks cannot share 2 samples' --data two
refused 2 "images too small for the CNN" '5 x 5, too small' --data small

refused 0 "a mean without a deviation" '--mean and --std belong together' --data nowhere --mean 0.1
refused 0 "means of other channels" '2 numbers for images of 1 channel$' --data good --mean 0.1,0.2 \
    --std 1
refused 0 "a mean that is no number" '--mean 0.1,x: give numbers' --data nowhere --mean 0.1,x --std 1
refused 0 "no deviation" '--std 0: a deviation must be above 0' --data nowhere --mean 0.1 --std 0
refused 0 "a shift out of the image" '8 x 8 pixels cannot be moved by up to 8' --data good --shift 8
refused 0 "a part above 1" '--flip 2: give a number from 0 to 1' --data good --flip 2
refused 0 "an unknown sampler" '--sampler fair is not supported: give pad.drop.overlap' --sampler fair
refused 2 "less than a batch to keep" '96 samples are less than one batch' --data good --sampler drop

data_set stray 96 40 8
printf '\377' | dd of=stray/train-labels-idx1-ubyte bs=1 seek=20 conv=notrunc 2>/dev/null
refused 2 "one damaged label" 'label 255 occurs in the training set of stray alone .1 image, the first is image 12.' --data stray

colour_set colours 96 30
run_anew 2 "$train" --data colours --batch 8 --epochs 3 --quiet --log "$out/log" --shift 3 --flip 0.5
[ "$status" = 0 ] && [ "$(field test_accuracy "$out/log")" = 1 ]
result $? "the CNN learns images of 3 channels, moved and mirrored"

# The parameters after a short training on colours.
hash_of() { # arguments...
    run_anew 2 "$train" --quiet --log "$out/log" "$@"
    field param_hash "$out/log"
}
hash_with() { # arguments...
    hash_of --data colours --model mlp --batch 20 --epochs 2 "$@"
}
one=$(hash_with --mean 0.25 --std 0.5)
uneven=$(hash_with --mean 0.25,0.25,0.26 --std 0.5)
none=$(hash_with)
[ -n "$one" ] && [ "$one" = "$(hash_with --mean 0.25,0.25,0.25 --std 0.5,0.5,0.5)" ] &&
    [ -n "$uneven" ] && [ "$one" != "$uneven" ] && [ -n "$none" ] && [ "$one" != "$none" ]
result $? "--mean and --std take a number for all channels, or each"
# 96 samples on 2 ranks: batches of 20, 20 and 8 each, or without the last.
for mode in pad:6 drop:4 overlap:6; do
    hash_with --sampler ${mode%:*} >hashes
    [ -s hashes ] && [ "$(field steps "$out/log")" = ${mode#*:} ]
    result $? "trains with --sampler ${mode%:*}"
done

# bf16 on the CPU: it learns where the processor has it, and is refused elsewhere.
export ISO_CPU_KERNELS=reference
refused 2 "bf16 of plain kernels" 'have no math bf16: use math f32' --math bf16 --data colours
unset ISO_CPU_KERNELS
export DNNL_MAX_CPU_ISA=AVX512_CORE
refused 2 "bf16 of a processor without it" 'no math bf16|no bf16 instructions' --math bf16 --data colours
unset DNNL_MAX_CPU_ISA
run_anew 2 "$train" --data colours --model mlp --math bf16 --batch 8 --epochs 3 --quiet --log "$out/log"
if grep -q 'no math bf16\|no bf16 instructions' stderr; then
    echo "learns with --math bf16" >>results
    echo "ok - learns with --math bf16 # SKIP this processor has no AVX512_BF16, or this build no oneDNN"
else
    [ "$status" = 0 ] && [ "$(field test_accuracy "$out/log")" = 1 ]
    result $? "learns with --math bf16"
fi

# Activations of 16 bits, on every CPU: with oneDNN, and with plain kernels.
for half in bf16 "f16 --grad-scaler"; do
    for kernels in "" reference; do
        [ -z "$kernels" ] || export ISO_CPU_KERNELS=$kernels
        run_anew 2 "$train" --data colours --batch 8 --epochs 3 --quiet --log "$out/log" --autocast $half
        [ "$status" = 0 ] && [ "$(field test_accuracy "$out/log")" = 1 ]
        result $? "the CNN learns with --autocast $half${kernels:+, $kernels kernels}"
        unset ISO_CPU_KERNELS
    done
done
lazy=$(hash_of --data good --model resnet18 --batch 2 --steps 2 --autocast bf16)
whole=$(hash_of --data good --model resnet18 --batch 2 --steps 2)
[ -n "$lazy" ] &&
    [ "$lazy" = "$(hash_of --data good --model resnet18 --batch 2 --steps 2 --autocast bf16 --sync blocking)" ] &&
    [ -n "$whole" ] && [ "$lazy" != "$whole" ]
result $? "--autocast bf16 gives lazy the parameters of blocking"
run_anew 2 "$train" --data good --model mlp --steps 20 --lr 10 --quiet --autocast f16
has_failed && grep -q 'diverged: .*NaN or infinite: try --grad-scaler, bf16 instead of f16, or a lower --lr$' stderr
result $? "f16 that overflows names what helps"
# Parameters of 16 bits, whose master weights are saved.
same_hash() {
    [ -n "$1" ] && [ "$1" = "$2" ]
}
set -- --data good --model mlp --batch 8 --dtype bf16 --schedule constant --sync lazy --zero --checkpoint half --overwrite
hash_of "$@" --steps 6 --checkpoint-every 6 >dump
resumed=$(hash_of "$@" --steps 12 --checkpoint-every 6 --resume auto --extend)
grep -q '"event":"resume","step":6,' "$out/log" &&
    same_hash "$resumed" "$(hash_of --data good --model mlp --batch 8 --dtype bf16 --schedule constant --sync blocking --steps 12)"
result $? "a run with --dtype bf16 and --zero is saved and goes on as one in blocking mode"
set -- --data good --model resnet18 --batch 2 --steps 2 --dtype f16
same_hash "$(hash_of "$@" --sync lazy --zero-stage 3)" "$(hash_of "$@" --sync blocking)"
result $? "--dtype f16 gives lazy with --zero-stage 3 the parameters of blocking"
refused 2 "parameters of 16 bits, ZeRO and a periodic mode" '--dtype f16 cannot be combined with both ZeRO and --sync' \
    --dtype f16 --sync daso --zero --data nowhere
refused 2 "rounded parameters with rounded activations" '--autocast bf16 rounds f32: remove it or --dtype f16' \
    --autocast bf16 --dtype f16 --data nowhere
refused 2 "activations of f16 in products of bf16" '--math bf16 would round activations of f16 to bf16: remove it' \
    --autocast f16 --math bf16 --data nowhere
refused 2 "rounded activations of f64" '--autocast bf16 rounds f32: remove it or --dtype f64' --autocast bf16 \
    --dtype f64 --data nowhere

# The same batch norms on 2 ranks, each over its own batch or over both.
own=$(hash_of --data good --model resnet18 --batch 2 --steps 2)
both=$(hash_of --data good --model resnet18 --batch 2 --steps 2 --sync-batchnorm)
[ -n "$own" ] && [ -n "$both" ] && [ "$own" != "$both" ]
result $? "trains with --sync-batchnorm"

# Running statistics change tests, and no parameter; where they travel in each step, more bytes do.
test_of() { # arguments...
    hash_of --data good --model resnet18 --batch 2 --steps 2 "$@" >"hash"
    field test_loss "$out/log"
}
average=$(test_of)
sent=$(field bytes_sent "$out/log")
broadcast=$(test_of --buffers broadcast)
keep=$(test_of --buffers keep)
[ -n "$average" ] && [ -n "$broadcast" ] && [ -n "$keep" ] && [ "$average" != "$broadcast" ] &&
    [ "$average" != "$keep" ] && [ "$broadcast" != "$keep" ] && [ "$(cat hash)" = "$own" ]
result $? "--buffers says what becomes of running statistics"
good=0
for when in forward backward; do
    test_of --buffers broadcast --buffers-when $when >loss
    [ "$(field bytes_sent "$out/log")" -gt "$sent" ] && [ "$(cat hash)" = "$own" ] || good=1
done
result $good "--buffers-when forward and backward exchange running statistics in each step"
refused 0 "buffers of a model without any" '--buffers needs --model resnet18\|resnet50, but --model is cnn' --buffers keep
refused 2 "a time for buffers that are kept" '--buffers keep synchronises nothing, so --buffers-when forward' \
    --model resnet18 --buffers keep --buffers-when forward --data nowhere

# ---- Files ----

refused 2 "a log in a missing folder" 'cannot create log nowhere/log' --data good --log nowhere/log
refused 2 "a log that is a folder" 'cannot create log empty' --data good --log empty
refused 2 "a trace in a missing folder" 'trace nowhere/trace' --data good --trace nowhere/trace
refused 2 "a checkpoint in a missing folder" 'checkpoint nowhere/c' --data good \
    --checkpoint nowhere/c
mkfifo pipe
refused 2 "a log that is a pipe without a reader" 'cannot write log pipe: nobody reads' --data good --log pipe
refused 2 "parameters from a pipe" 'cannot read checkpoint pipe: it is not a file' --data good --load pipe
timeout 60 cat pipe >piped_log &
run_anew 1 "$train" --data good --model mlp --steps 2 --quiet --log pipe
wait $!
[ "$status" = 0 ] && [ "$(field event piped_log)" = summary ]
result $? "a log may be a pipe that somebody reads"
refused 2 "a checkpoint that is a folder" 'checkpoint empty' --data good --checkpoint empty
refused 2 "a missing checkpoint" 'nowhere.safetensors' --data good --load nowhere.safetensors

ISO_NODE_COLLECTIVE=pigeons
export ISO_NODE_COLLECTIVE
refused 2 "an unknown way to sum in a node" 'ISO_NODE_COLLECTIVE is "pigeons": give auto, nccl, nccl-all, shm or mpi' \
    --data good
if ! grep -q '^#define ISO_HAVE_NCCL' "$build/config.h"; then
    ISO_NODE_COLLECTIVE=nccl
    refused 2 "NCCL in a build without it" 'ISO_NODE_COLLECTIVE is nccl, but this build has no NCCL .*: set it to auto' \
        --data good
fi
unset ISO_NODE_COLLECTIVE
refused 2 "nothing to resume" 'no saved state nowhere.step' --data good --resume nowhere
refused 2 "a file of the saved state" 'no saved state c.step-000000000020.step.*: give the path without .step-000000000020' \
    --data good --resume c.step-000000000020
refused 2 "a setting that is an option" '--sync-option period: give the option' --data nowhere --sync localsgd \
    --sync-option period=4
refused 2 "a setting that a mode does not have" 'lazy has no setting "speed"' --data good --model mlp \
    --sync-option speed=9
run_anew 0 "$train" --data good --checkpoint-every 5
[ "$status" != 0 ] && grep -q '^train: --checkpoint-every needs --checkpoint' stderr
result $? "refused with one sentence: saving without a name"

run_anew 2 "$train" --data good --model mlp --epochs 2 --quiet --checkpoint "$work/saved" --checkpoint-every 5
cp saved saved.first
run_anew 2 "$train" --data good --model mlp --epochs 2 --quiet --checkpoint "$work/saved" --checkpoint-every 5
[ "$status" != 0 ] && [ "$(grep -c '^train: .*saved states of .*--resume' stderr)" = 1 ] &&
    cmp -s saved saved.first
result $? "saved state is not lost to a run that was started again"
run_anew 2 "$train" --data good --model mlp --epochs 2 --quiet --checkpoint "$out/c" --checkpoint-every 1 --trace "$out/trace"
good=$status
tail -n 1 "$out/trace" | grep -q '^]}$' && cmp -s saved.first "$out/c" || good=1
[ -e "$out/c.step-000000000002" ] || good=1
result "$good" "a trace and saved state are written by one run"
rm saved
run_anew 2 "$train" --data good --model mlp --epochs 2 --quiet --checkpoint "$work/saved" --resume "$work/saved"
[ "$status" = 0 ] && cmp -s saved saved.first
result $? "resuming a finished run writes its checkpoint again"

run_anew 2 "$train" --data good --model mlp --epochs 2 --quiet --checkpoint "$out/c" --log "$out/log"
[ "$status" = 0 ] && [ -s "$out/c" ] && [ "$(find "$out" -type f | wc -l)" = 2 ]
result $? "a checkpoint is written, and nothing is left beside it"
mv "$out/c" mlp.safetensors
mv "$out/log" mlp.jsonl
run_anew 2 "$train" --data good --model mlp --batch 8 --epochs 2 --log "$out/log"
awk -v ms="$(awk -v s="$(field seconds "$out/log")" -v n="$(field steps "$out/log")" 'BEGIN { print 1000 * s / n }')" '
    /^step .* on average, of that .* waiting/ { found = 1; d = $2 - ms; wait = $8; step = $2 }
    END { exit !(found && d * d < 1e-4 && wait <= step) }' stdout
result $? "the mean time of a step is that of the log, and waiting is a part of it"
# Files may have 100 KiB. A single rank: several share memory by files that are larger.
run_anew 1 sh -c 'ulimit -f 200; exec "$@"' sh "$train" --data good --model mlp --steps 1 --quiet --checkpoint "$out/c"
[ "$status" = 1 ] && [ "$(grep -c '^train: cannot write .*/c' stderr)" = 1 ] && [ -z "$(ls -A "$out")" ]
result $? "a limit on the size of files is told of as a full disk"
head -c 2000 mlp.safetensors >damaged.safetensors
refused 2 "a checkpoint of another model" 'mlp.safetensors' --data good --load mlp.safetensors
refused 2 "a damaged checkpoint" 'damaged.safetensors' --data good --model mlp \
    --load damaged.safetensors

run_anew 2 "$train" --data good --model mlp --steps 1 --lr 1e-12 --load mlp.safetensors --log "$out/log"
[ "$status" = 0 ] && [ "$(field test_accuracy "$out/log")" = "$(field test_accuracy mlp.jsonl)" ]
result $? "a model that was loaded is as good as when it was saved"

refused 0 "early stopping without a validation set" '--early-stopping needs a validation set' \
    --early-stopping 3 --data nowhere
refused 0 "a best checkpoint without a validation set" '--checkpoint-best needs a validation set' \
    --checkpoint-best "$out/best" --data nowhere
refused 2 "a validation set without images" '--validation 0.001 of 96 images leaves one of the two sets empty' \
    --data good --validation 0.001
run_anew 2 "$train" --data good --model mlp --batch 4 --epochs 6 --lr 0.1 --validation 0.25 --log "$out/log" \
    --checkpoint-best "$work/best"
best=$(field best_epoch "$out/log")
sed -n 's/.*"event":"epoch","epoch":'"$best"',.*"test_accuracy":\([^,]*\),.*"validation_accuracy":'"$(
    field best_validation_accuracy "$out/log")"',.*/\1/p' "$out/log" >accuracy
good=$status
[ -n "$best" ] && [ -s accuracy ] && [ "$(field steps "$out/log")" = 54 ] && # 72 images, 9 steps an epoch
    grep -q "^best validation accuracy .* after epoch $best\$" stdout || good=1
run_anew 2 "$train" --data good --model mlp --steps 1 --lr 1e-12 --load "$work/best" --log "$out/log"
[ "$status" = 0 ] && [ "$(field test_accuracy "$out/log")" = "$(cat accuracy)" ] || good=1
result $good "--checkpoint-best has the epoch with the best validation accuracy"
refused 2 "an older best checkpoint" 'the checkpoint-best .*best exists: give another --checkpoint-best' --data good \
    --validation 0.25 --checkpoint-best "$work/best"

# ---- What a run writes ----

run_anew 2 "$train" --data good --epochs 2 --quiet --log "$out/log" --trace "$out/trace"
good=$status
[ "$(grep -c '^{"event":"epoch",.*}$' "$out/log")" = 2 ] || good=1
[ "$(wc -l <"$out/log")" = 3 ] || good=1
for key in ranks model sync test_accuracy train_loss samples_per_second step_ms_p50 \
    exchange_alone_ms wait_ms_per_step bytes_per_step peak_rss_mb param_hash progress algorithm \
    batch threads seed parameters steps math dtype; do
    [ -n "$(field "$key" "$out/log")" ] || good=1
done
tail -n 1 "$out/log" | grep -q '^{"event":"summary",.*}$' || good=1
result "$good" "the log has a line for each epoch and a summary with all keys"

good=0
[ "$(head -n 1 "$out/trace")" = '{"displayTimeUnit":"ms","traceEvents":[' ] || good=1
[ "$(tail -n 1 "$out/trace")" = ']}' ] || good=1
for rank in 0 1; do
    for lane in compute queue exchange wait update; do
        grep -q "\"ph\":\"X\",\"pid\":$rank,.*\"cat\":\"$lane\"" "$out/trace" || good=1
    done
done
result "$good" "the trace shows compute, queue, exchange, wait and update of both ranks"

[ ! -s stdout ] && [ ! -s stderr ]
result $? "--quiet prints nothing"

run_anew 2 "$train" --data good --model mlp --epochs 4 --quiet --log "$out/log" --eval-every 5
good=$status
# 96 images, 2 ranks x 64: one step an epoch.
[ "$(grep -c '^{"event":"eval","step":4,.*"train_loss":.*}$' "$out/log")" = 1 ] || good=1
[ "$(grep -c '"event":"eval"' "$out/log")" = 1 ] || good=1
result "$good" "--eval-every evaluates at the last step, too"

# ---- Strategies ----

# A short training on digits, in which ranks of $nodes exchange parameters.
strategy() { # what holds, ranks, fewest exchanges, arguments...
    name=$1
    ranks=$2
    fewest=$3
    shift 3
    case " $* " in *" --batch "*) ;; *) set -- --batch 32 "$@" ;; esac
    run_anew "$ranks" "$train" --model mlp --steps 40 --eval-every 16 --quiet \
        --log "$out/log" "$@"
    good=$status
    [ "$(grep -c '"event":"eval"' "$out/log")" = 3 ] || good=1
    [ "$(grep -c '"event":"sync"' "$out/log")" -ge "$fewest" ] || good=1
    [ -n "$(field param_hash "$out/log")" ] || good=1
    awk -v a="$(field test_accuracy "$out/log")" 'BEGIN { exit !(a > 0.6) }' || good=1
    result "$good" "$name"
}

strategy "trains blocking" 2 0 --sync blocking
strategy "trains lazily" 3 0 --sync lazy
strategy "trains with local SGD" 2 10 --sync localsgd --period 4
! grep 'warning: --period' stderr
result $? "a period that is reached is not warned of"
strategy "trains with a period that is never reached" 2 1 --sync localsgd --period 40
grep -q 'warning: --period 40 is not shorter than the 40 steps in which ranks train apart' stderr
result $? "a period that is never reached is warned of"
set -- "$train" --model mlp --steps 5 --quiet --warmup-lr-steps
run_anew 1 "$@" 4
[ "$status" = 0 ] && ! grep 'warning: --warmup-lr-steps' stderr
result $? "a warm-up of the learning rate that ends within the run is not warned of"
run_anew 2 "$@" 5
[ "$status" = 0 ] &&
    [ "$(grep -c '^train: warning: --warmup-lr-steps 5 does not end within the 5 steps of the run: .*, and --schedule has no effect: give fewer$' stderr)" = 1 ]
result $? "one that does not is warned of, once"
run_anew 1 "$@" 5 --schedule plateau
[ "$status" = 0 ] && grep -q '^train: warning: --warmup-lr-steps 5 .* does not reach that of --lr: give fewer$' stderr
result $? "a plateau lowers the learning rate also during a warm-up"
strategy "trains with local SGD at the standard period" 2 5 --sync localsgd
tail -n 1 "$out/log" | grep -q '"period":8,"period_requested":"auto"'
result $? "a period that is not given was not requested"
strategy "trains with post-local SGD" 3 5 --sync postlocal --period 4
ISO_RANKS_PER_NODE=1
export ISO_RANKS_PER_NODE
# A busy machine makes it wait long, and so exchange seldom.
strategy "trains with DASO, which measures how long to wait" 2 1 --sync daso
grep -q '"event":"policy".*"reason":"an exchange was measured' "$out/log" &&
    [ "$(field syncs "$out/log")" -ge 1 ] && [ "$(field bytes_between_nodes "$out/log")" -gt 0 ]
result $? "the log tells of the policy, exchanges and bytes between nodes"
# A measured wait may be longer than 2 here, and then is 2.
strategy "trains with DASO at a period that is given" 2 10 --sync daso --period 2
tail -n 1 "$out/log" | grep -q '"period":2,"period_requested":2,"wait":[12],"wait_requested":"auto"' &&
    ! grep '"event":"policy"' "$out/log" | grep -qv '"global_skip":2,'
result $? "a period that is given stays, and the measured wait is at most that"
run_anew 2 "$train" --data good --model mlp --sync daso --wait 2 --epochs 30 --quiet --log "$out/log"
alone=$(field param_hash "$out/log")
run_anew 2 "$train" --data good --model mlp --sync daso --wait 2 --epochs 30 --quiet --log "$out/log" \
    --eval-every 3
[ -n "$alone" ] && [ "$alone" = "$(field param_hash "$out/log")" ]
result $? "evaluating does not change a training with DASO"
strategy "trains with every option of DASO" 2 3 --sync daso --period 4 --max-period 8 --wait 2 \
    --warmup-steps 4 --cooldown-steps 4 --local-skip 2 --unit rank --merge heat --wire f16 \
    --state average --policy adaptive --max-divergence 0.2
ISO_RANKS_PER_NODE=2
strategy "trains with DASO on unequal nodes" 3 4 --sync daso --wait 3 --policy plateau \
    --stability-level 0.1
grep -q 'the policy plateau will change nothing: .* this run of 40 steps' stderr
result $? "a policy that can decide on nothing in so short a run is warned of"
strategy "trains with HeAT's DASO" 3 4 --sync daso-heat --batch 1500 --optimizer adam --lr 0.005 \
    --warmup-epochs 1 --cooldown-epochs 1 --max-global-skips 4 --sending-chunk-size 100000 \
    --downcast-type f32 --use-mpi-groups no --skip-reduction-factor 2 --local-skip-factor 2 \
    --stability-level 0.05
tail -n 1 "$out/log" | grep -q '"period":1,"period_requested":"auto"'
result $? "a full average after each batch is a period of 1 in the log, too"
unset ISO_RANKS_PER_NODE

run_anew 2 "$train" --model mlp --optimizer sgd --lr 1e6 --steps 40 --quiet --sync localsgd --period 4
has_failed && [ "$(grep -c '^train: .*lower' stderr)" = 1 ]
result $? "parameters that are not finite end a training with one sentence"

# ---- Ranks ----

run_anew 2 "$train" --model mlp --steps 20 --sync lazy --quiet --log "$out/log"
lazy=$(field param_hash "$out/log")
sharp=$lazy
run_anew 2 "$train" --model mlp --steps 20 --sync blocking --quiet --log "$out/log"
[ -n "$lazy" ] && [ "$lazy" = "$(field param_hash "$out/log")" ]
result $? "lazy and blocking give the same parameters"

full=$(field bytes_per_step "$out/log")
run_anew 2 "$train" --model mlp --steps 20 --stats --log "$out/log"
grep '"event":"bucket"' "$out/log" | sed 's/[^0-9.:,]//g' >"$out/buckets" # of each field what is a number
awk -F '[:,]' -v all="$(field bytes_per_step "$out/log")" '
    { sum += $8; if ($14 < $12 || $16 < $14 || $10 != 20) exit 1 } # start, ready; done, start; exchanges
    END { exit !(NR >= 2 && sum == all) }' "$out/buckets"
good=$?
[ "$status" = 0 ] && [ "$(grep -cE '^(fc|layers)' stdout)" -ge 3 ] || good=1
grep -q '^forward .* ms, backward .* during backward (means on rank 0)$' stdout || good=1
grep '"event":"times"' "$out/log" | sed 's/[^0-9.,]//g' | # forward, backward, exchange, overlap
    awk -F , '{ ok = $2 > 0 && $3 > 0 && $4 > 0 && $5 <= $4 } END { exit !ok }' || good=1
result "$good" "--stats tells of each bucket when it was ready, left and came back"
run_anew 2 "$train" --model mlp --steps 20 --sync lazy --zero-stage 2 --stats --log "$out/log"
[ "$status" = 0 ] && [ "$(field param_hash "$out/log")" = "$lazy" ] &&
    grep -q '^at most [0-9.]* MB of gradients were in memory at once on rank 0$' stdout &&
    grep -q '"event":"gradient_memory","peak_bytes":[1-9]' "$out/log"
result $? "--zero-stage 2 gives the parameters of lazy, and --stats tells what gradients took"
run_anew 2 "$train" --model mlp --steps 20 --sync lazy --zero-stage 3 --quiet --log "$out/log"
[ "$status" = 0 ] && [ "$(field param_hash "$out/log")" = "$lazy" ]
result $? "--zero-stage 3 gives the parameters of lazy"

run_anew 2 "$train" --model mlp --steps 20 --sync lazy --wire bf16 --quiet --log "$out/log"
rounded=$(field param_hash "$out/log")
[ $((2 * $(field bytes_per_step "$out/log"))) = "$full" ] && [ "$rounded" != "$lazy" ]
result $? "--wire bf16 halves the bytes of a step"
run_anew 2 "$train" --model mlp --steps 20 --sync blocking --wire bf16 --quiet --log "$out/log"
[ -n "$rounded" ] && [ "$rounded" = "$(field param_hash "$out/log")" ]
result $? "lazy and blocking give the same parameters with --wire bf16"
run_anew 2 "$train" --model mlp --steps 20 --sync lazy --wire noop --log "$out/log"
[ "$status" = 0 ] && [ "$(field bytes_sent "$out/log")" = 0 ] && grep -q 'rank 0 only' stdout
result $? "--wire noop exchanges nothing and says so"

for sync in lazy blocking; do
    run_anew 2 "$train" --dtype f64 --model cnn --dropout --batch 16 --label-smoothing 0.1 --steps 4 \
        --data good --sync $sync --quiet --log "$out/log" --checkpoint "$out/checkpoint"
    [ "$status" = 0 ] && grep -q '"F64"' "$out/checkpoint" && ! grep -q '"F32"' "$out/checkpoint"
    result $? "trains in f64 with --sync $sync, and saves f64"
    [ $sync = lazy ] && lazy=$(field param_hash "$out/log")
done
[ -n "$lazy" ] && [ "$lazy" = "$(field param_hash "$out/log")" ]
result $? "lazy and blocking give the same parameters in f64"
run_anew 2 "$train" --model mlp --steps 20 --quiet --log "$out/log" --label-smoothing 0.3
[ "$status" = 0 ] && [ "$(field param_hash "$out/log")" != "$sharp" ]
result $? "label smoothing changes a training"
refused 2 "levels that are not those of the ranks" '2 ranks cannot be divided into groups of 3' \
    --sync localsgd --levels 2:1,4:3 --steps 4
refused 2 "levels that are no levels" 'levels 4: give PERIOD:RANKS for each level' --sync postlocal --levels 4 --data nowhere
refused 2 "levels and a period" '--levels replaces --period: give only one of them' --sync localsgd --levels 2:1,4:2 --period 2
for sync in localsgd postlocal; do
    run_anew 2 "$train" --model mlp --batch 16 --steps 8 --sync $sync --levels 2:1,4:2 --quiet --log "$out/log"
    [ "$status" = 0 ] && [ -n "$(field param_hash "$out/log")" ]
    result $? "trains with --sync $sync --levels"
done
# docs/sync-modes.md says what the presets stand for.
alone='--unit rank --wire f32 --warmup 0 --cooldown 0'
while IFS=: read -r preset meaning; do
    # shellcheck disable=SC2086
    run_anew 2 "$train" --model mlp --batch 16 --steps 14 --period 4 --quiet --log "$out/log" --sync $preset
    first=$(field param_hash "$out/log")
    # shellcheck disable=SC2086
    run_anew 2 "$train" --model mlp --batch 16 --steps 14 --period 4 --quiet --log "$out/log" --sync $meaning
    [ "$status" = 0 ] && [ -n "$first" ] && [ "$(field param_hash "$out/log")" = "$first" ]
    result $? "--sync $preset is --sync $meaning"
done <<END
slowmo:postlocal --outer slowmo --warmup 0
diloco --wire bf16:postlocal --outer nesterov --warmup 0 --wire bf16
streaming-diloco:daso --outer nesterov $alone --mix 0.5 --wait 1 --fragments 2 --fragment-order strides
overlap-localsgd:daso --outer pull $alone --wait 4
END
refused 2 "a consensus step of gossip in f32" '--consensus-step needs --wire' --sync gossip --consensus-step 0.5
refused 2 "a consensus step above 1" '--consensus-step' --sync gossip --wire bf16 --consensus-step 1.5
refused 2 "a tournament without samples to compare models on" '--sync tournament compares models .* give --validation' \
    --sync tournament --data nowhere
refused 2 "an outer optimizer and a merge" '--outer adam takes the place of --merge' --sync daso --outer adam --merge heat
refused 2 "an outer optimizer and levels" '--levels and --outer mean cannot be combined' \
    --sync localsgd --outer mean --levels 2:1,4:2
refused 2 "an outer learning rate without outer optimizer" '--outer-lr needs --outer' --sync daso --outer-lr 0.5
refused 2 "an outer period without outer optimizer" '--outer-period needs --outer' --sync gossip --outer-period 5
refused 2 "more fragments than steps in a period" '--period 4 is shorter than --fragments 5' \
    --sync streaming-diloco --period 4 --fragments 5
refused 2 "more fragments than layers" 'cannot be divided among 9 fragments' \
    --sync streaming-diloco --model mlp --period 9 --fragments 9
refused 2 "an order without fragments" '--fragment-order needs --fragments of 2 or more' \
    --sync daso --fragment-order strides
refused 2 "fragments and a local skip" '--fragments and --local-skip cannot be combined' \
    --sync daso --fragments 2 --wait 1 --local-skip 2
run_anew 2 "$train" --model mlp --batch 16 --steps 40 --quiet --sync streaming-diloco --wait 10 --log "$out/log"
[ "$status" = 0 ] && grep -q '"period":15' "$out/log"
result $? "a period that is not given is one and a half of the wait, with fragments, too"
refused 2 "fragments without a wait" '--fragments needs --wait' --sync daso --fragments 2
refused 2 "int8 for f64 parameters" '--wire int8 needs f32: remove' --dtype f64 --sync daso --wire int8 --data nowhere
for sync in daso daso-heat localsgd postlocal "streaming-diloco --period 4" "gossip --wait 1" "server --period 3" \
    "tournament --validation 0.1 --period 3 --unit rank"; do
    # shellcheck disable=SC2086
    run_anew 2 "$train" --dtype f64 --model mlp --batch 16 --steps 8 --sync $sync --quiet \
        --checkpoint "$out/checkpoint" --log "$out/log"
    [ "$status" = 0 ] && grep -q '"F64"' "$out/checkpoint" && ! grep -q '"F32"' "$out/checkpoint"
    result $? "trains in f64 with --sync $sync, and saves f64"
done
refused 0 "a split average without its factor" '--average split needs --split-factor' --average split --data nowhere
refused 0 "a factor of another average" '--split-factor needs --average split, but --average is post' --split-factor 2
refused 2 "sums of gradients in a periodic mode" '--average sum cannot be combined with --sync daso,' \
    --average sum --sync daso --data nowhere
refused 0 "averages of gradients that no rank averages" '--average pre has no effect with --sync localsgd' \
    --average pre --sync localsgd --data nowhere
refused 0 "a split average of gradients that a wire divides" '--average split has no effect with --wire f16' \
    --average split --split-factor 2 --wire f16 --data nowhere
refused 2 "a comparison of ranks that train apart" '--check-equal cannot be combined with --sync localsgd' \
    --check-equal 4 --sync localsgd --data nowhere
refused 0 "a comparison of ranks that exchange nothing" '--check-equal cannot be combined with --wire noop' \
    --check-equal 4 --wire noop --data nowhere
refused 2 "a noise scale of gradients that are not averaged" '--noise-scale compares .* which --sync daso does not' \
    --noise-scale 4 --sync daso --data nowhere
refused 0 "a noise scale of one rank" '--noise-scale compares the gradients of ranks: start at least 2 ranks' \
    --noise-scale 4 --steps 4
run_anew 2 "$train" --model mlp --steps 40 --noise-scale 2 --log "$out/log"
[ "$status" = 0 ] && [ "$(grep -c '"event":"noise_scale"' "$out/log")" = 20 ] &&
    grep -q "^gradient noise scale $(printf %.0f "$(summary_field noise_scale "$out/log")") samples; a global batch has 128$" stdout
result $? "--noise-scale measures every Nth step and tells its result"
refused 0 "an answer to no comparison" '--on-difference resync needs --check-equal' --on-difference resync --data nowhere
run_anew 2 "$train" --model mlp --steps 20 --quiet --check-equal 3 --log "$out/log"
[ "$status" = 0 ] && [ "$(field param_hash "$out/log")" = "$sharp" ] && [ "$(field differences "$out/log")" = 0 ]
result $? "comparing ranks that are equal changes nothing"
refused 2 "gradients clipped to nothing" 'clip-grad-norm 0' --model mlp --clip-grad-norm 0
run_anew 2 "$train" --quiet --model mlp --optimizer sgd --lr 1e6 --batch 8 --steps 8 --checkpoint "$out/c" --checkpoint-every 1
[ "$status" != 0 ] && grep -q 'fc1.weight is not finite' stderr && [ -e "$out/c.step-000000000002" ]
result $? "what is saved stays when parameters are not finite any more"

ISO_LOG=info
export ISO_LOG
run_anew 2 "$train" --model mlp --steps 20 --kernels tuned --quiet --log "$out/log"
unset ISO_LOG
[ "$status" = 0 ] && [ -n "$(field param_hash "$out/log")" ] && [ "$(field kernels "$out/log")" = tuned ] &&
    ! grep -q '^isotherm.1. info: kernel for ' stderr &&
    { ! field device "$out/log" | grep -q oneDNN || grep -q '^isotherm.0. info: kernel for linear forward 64 x 784' stderr; }
result $? "with tuned kernels rank 0 measures, and all ranks end with the same parameters"

run_anew 2 "$train" --model mlp --steps 90 --quiet --log "$out/log"
straight=$(field param_hash "$out/log")
run_anew 2 "$train" --model mlp --steps 90 --rebuild tuned --quiet --log "$out/log"
[ "$status" = 0 ] && [ -n "$straight" ] && [ "$(field param_hash "$out/log")" = "$straight" ] &&
    [ "$(grep -c '"event":"buckets",.*"what":"trial","bucket_mb":' "$out/log")" -ge 2 ] &&
    [ "$(grep -c '"event":"buckets",.*"what":"chosen"' "$out/log")" = 1 ]
result $? "tuned buckets are tried, chosen and logged, and change no bit"
refused 2 "buckets of a wire that remembers" '--rebuild cannot be combined with --wire int8' \
    --rebuild ready --wire int8 --data nowhere
refused 2 "buckets of ZeRO" '--rebuild cannot be combined with --zero' --rebuild tuned --zero --data nowhere
refused 2 "buckets of ZeRO stage 2" '--rebuild cannot be combined with --zero' --rebuild ready --zero-stage 2 --data nowhere
refused 2 "buckets of daso" '--rebuild cannot be combined with --sync daso' --rebuild ready --sync daso --data nowhere

run_anew 0 "$train" --data good --epochs 1 --log "$out/log"
[ "$status" = 0 ] && [ "$(field ranks "$out/log")" = 1 ]
result $? "runs without the launcher"

run_anew 3 "$train" --data good --epochs 1 --log "$out/log"
[ "$status" = 0 ] && [ "$(field ranks "$out/log")" = 3 ]
result $? "runs on 3 ranks"

run_anew 2 "$mnist" good
[ "$status" = 0 ] && [ "$(grep -c 'test accuracy' stdout)" = 3 ]
result $? "mnist trains on a folder"
run_anew 2 "$mnist" nowhere
[ "$status" != 0 ] && [ "$(grep -c '^error: .*nowhere' stderr)" = 1 ]
result $? "mnist refuses a missing folder with one sentence"
run_anew 2 "$mnist" good two
[ "$status" != 0 ] && [ "$(grep -c '^mnist: unexpected argument two' stderr)" = 1 ]
result $? "mnist refuses a second argument with one sentence"
run_anew 2 "$mnist_daso" good
[ "$status" = 0 ] && [ "$(grep -c 'test accuracy' stdout)" = 3 ]
result $? "mnist-daso trains on a folder"
for program in "$mnist" "$mnist_daso"; do
    name=$(basename "$program")
    run_anew 2 "$program" --help
    [ "$status" = 0 ] && [ "$(grep -c "^usage: mpirun -n RANKS $name" stdout)" = 1 ] && [ ! -s stderr ] &&
        ! grep -qE 'accuracy|loss' stdout
    result $? "$name --help tells how it is used, once, and trains nothing"
    run_anew 2 "$program" --epochs 3
    [ "$status" != 0 ] && [ "$(grep -c "^$name: unknown option --epochs: see --help" stderr)" = 1 ] && [ ! -s stdout ]
    result $? "$name refuses an option with one sentence"
done

run_anew 2 "$own_arrays" --help
good=$status
[ "$(grep -c "^usage: mpirun -n RANKS own-arrays" stdout)" = 1 ] && [ ! -s stderr ] && ! grep -q loss stdout || good=1
run_anew 2 "$own_arrays" 3
has_failed && [ "$(grep -c "^usage: mpirun -n RANKS own-arrays" stderr)" = 1 ] && [ ! -s stdout ] || good=1
result $good "own-arrays tells how it is used, once, and refuses arguments"

# ---- Learning rates ----

# The rate of the last update of each epoch; an epoch has 6.
rates() { # schedule, rates, arguments...
    schedule=$1
    wanted=$2
    shift 2
    run_anew 2 "$train" --data good --model mlp --batch 8 --quiet --log "$out/log" --schedule "$schedule" "$@"
    sed -n 's/.*"event":"epoch".*"lr":\([^,}]*\).*/\1/p' "$out/log" | tr '\n' ' ' >got
    echo "$wanted" | cat got - | tr '\n' ' ' | awk '{
        for (i = 1; i <= NF / 2; i++) { d = $i - $(i + NF / 2); if (d < 0) d = -d; if (d > 1e-6 * $i) exit 1 }
        exit NF % 2 != 0 || NF < 4 }'
    result $? "rates of --schedule $schedule $*"
}
rates step "1 0.7 0.49 0.343" --step-size 1 --gamma 0.7 --optimizer adadelta --lr 1 --epochs 4
rates multi-step "0.1 0.05 0.05 0.025" --milestones 1,3 --gamma 0.5 --lr 0.1 --epochs 4 --optimizer adagrad
rates multi-step "0.1 0.1 0.01 0.001" --lr 0.1 --epochs 4 --optimizer lamb
rates exponential "0.001 0.0005 0.00025" --gamma 0.5 --lr 0.001 --epochs 3 --optimizer rmsprop
rates cosine-restarts "0.00669873 0.00669873" --step-size 1 --lr 0.1 --epochs 2
rates constant "0.0733333 0.1133333 0.12" --warmup-lr-steps 12 --lr 0.12 --epochs 3 --optimizer lamb
rates plateau "1e-7 1e-7 1e-8 1e-8" --patience 0 --lr 1e-7 --epochs 4 --optimizer sgd
rates plateau "1e-6 1e-6 1e-6 5e-7" --patience 1 --gamma 0.5 --lr 1e-6 --epochs 4 --optimizer sgd

# Without its last set a run goes on from the one before, and the plateau with it.
set -- --data good --model mlp --batch 8 --quiet --schedule plateau --patience 0 --gamma 0.5 --lr 0.3 \
    --epochs 6 --optimizer rmsprop --log "$work/log" --checkpoint "$work/plateau" --checkpoint-every 6
run_anew 2 "$train" "$@"
whole=$(field param_hash "$work/log")
rm "$work"/plateau.step-000000000036*
run_anew 2 "$train" "$@" --resume "$work/plateau"
[ "$status" = 0 ] && [ -n "$whole" ] && [ "$(field param_hash "$work/log")" = "$whole" ] &&
    grep -q '"event":"resume"' "$work/log" &&
    awk '/"event":"epoch"/ { sub(/.*"lr":/, ""); rate[$0] } END { for (r in rate) n++; exit n < 2 }' "$work/log"
result $? "a run whose rate falls on plateaus is resumed to the same bits"

# Saved state is whole: ZeRO may begin, end or change.
for stages in "--zero|--zero-stage 3" "--zero-stage 2|" "|--zero"; do
    set -- --data good --model mlp --batch 8 --quiet --epochs 2 --optimizer adam --log "$work/log" --checkpoint "$work/divided" \
        --checkpoint-every 6
    # shellcheck disable=SC2086  # options are several words
    run_anew 2 "$train" "$@" --overwrite ${stages%|*}
    whole=$(field param_hash "$work/log")
    rm "$work"/divided.step-000000000012*
    # shellcheck disable=SC2086
    run_anew 2 "$train" "$@" --resume "$work/divided" ${stages#*|}
    [ "$status" = 0 ] && [ -n "$whole" ] && [ "$(field param_hash "$work/log")" = "$whole" ] &&
        grep -q '"event":"resume"' "$work/log"
    result $? "a run saved with ${stages%|*} is resumed with ${stages#*|} to the same bits"
done

refused 0 "milestones that are no epochs" '--milestones 5,x: give epochs' --schedule multi-step --milestones 5,x --data nowhere
refused 0 "milestones that come to nothing" '--milestones 3,: give epochs' --schedule multi-step --milestones 3,
refused 0 "an option of other schedules" '--gamma needs --schedule step.multi-step' --gamma 0.5
refused 0 "a factor that reduces nothing" '--gamma 1: give a number below 1' --schedule plateau --gamma 1 --data nowhere

run_anew 2 "$train" --help
[ "$status" = 0 ] && [ "$(grep -c '^  --sync ' stdout)" = 1 ]
result $? "--help is printed once"
listed() { # page: its first listing without a language
    awk '/^```$/ { if (on++) exit; next } on' "$root/docs/$1"
}
listed training.md | cmp -s - stdout
result $? "docs/training.md shows what --help prints"
unset ISO_DIGITS # whose value it would print, too
run_anew 0 "$train" --help-env
[ "$status" = 0 ] && grep -q '^ISO_PROGRESS ' stdout
result $? "--help-env tells of the environment"
listed cluster.md | cmp -s - stdout
result $? "docs/cluster.md shows what --help-env prints"
run_anew 0 "$train" --version
[ "$status" = 0 ] && grep -q '^isotherm [0-9]' stdout
result $? "--version tells the version"
fails_on_full_output train "$train" --help && fails_on_full_output train "$train" --version &&
    fails_on_full_output train "$train" --steps 1 --batch 8 --data good --model mlp &&
    fails_on_full_output sweep "$programs/sweep" --help && fails_on_full_output mnist "$programs/mnist" --help
result $? "a full disk for the output is told of"

# ---- Own arrays ----

for ranks in 0 1 3; do
    run_anew $ranks "$own_arrays"
    [ "$status" = 0 ] && awk '/^step 3000: loss/ { found = $4 < 0.1 } END { exit !found }' stdout
    result $? "own-arrays learns on $ranks ranks (0: without mpirun)"
done

# ---- Errors inside a step ----

# The job ends, and stderr has these lines of the program and no other ones.
told() { # what holds, ranks, how, lines
    name=$1
    lines=$4
    run_anew "$2" "$probe" "$3"
    has_failed && [ "$(grep '^train: ' stderr | sort)" = "$lines" ]
    result $? "$name"
}
told "an error of all ranks is told once" 3 same 'train: the loss is NaN or infinite'
told "an error of one rank is told with its number, and ends the others" 3 one 'train: rank 2: the loss is NaN or infinite'
told "errors of their own are told by every rank, and name it once" 2 different \
    'train: rank 0 of 2 waited in vain
train: rank 1 of 2 waited in vain'
told "an error of the only rank is told without its number" 1 same 'train: the loss is NaN or infinite'

# ---- A rank that dies ----

rm -f pid.*
# shellcheck disable=SC2086,SC2016  # flags are several words; $$ belongs to the inner shell
timeout -k 5 120 "$launcher" $flags -n 2 \
    sh -c 'echo $$ >pid.$$; exec "$@"' sh "$train" --epochs 1000 >stdout 2>stderr \
    </dev/null &
job=$!
tries=0
while ! grep -q 'epoch 1' stdout && [ $tries -lt 30 ]; do
    sleep 1
    tries=$((tries + 1))
done
began=$(date +%s)
good=0
grep -q 'epoch 1' stdout && kill -9 "$(cat pid.* | tail -n 1)" || good=1
status=0
wait "$job" || status=$?
# mpirun gives 137 as the status of a rank that was killed; a busy machine needs more than a second.
[ "$good" = 0 ] && [ "$status" != 0 ] && [ "$status" != 124 ] && [ $(($(date +%s) - began)) -le 30 ]
result $? "a rank that dies ends the job within 30 s"

good=0
for program in "$train" "$mnist" "$mnist_daso" "$own_arrays" "$programs/get-mnist" "$programs/elastic"; do
    "$program" --help >help 2>&1
    run 0 "$program" -h
    [ "$status" = 0 ] && [ -s help ] && cmp -s help stdout || good=1
done
result $good "-h is --help in every program"

print_plan
