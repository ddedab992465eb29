#!/bin/sh
# SPDX-License-Identifier: MIT
# Gives the ranks of a training different data, and trainings damaged labels, and prints the results as TAP.
# usage: check_data.sh, in the build tree; uses MPIRUN and MPIRUN_FLAGS
# Not -e: what fails here is a result, not the end.
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
. "$root/tests/idx_files.sh"
need_launcher
sweep=$PWD/bin/sweep
limit=120
enter_work

# ---- Helpers ----

# One sentence on stderr of which this is a pattern, and no files.
is_refusal() { # pattern
    has_failed && one_sentence "$name" "$1" stderr && [ ! -e log ] && [ ! -e checkpoint ]
}
# Rank 0 runs in the folder a, and rank 1 in the folder b.
run_apart() { # program, arguments...
    # shellcheck disable=SC2016  # $@ belongs to the inner shells
    run 1 sh -c 'cd a && exec "$@"' sh "$@" : -n 1 sh -c 'cd b && exec "$@"' sh "$@"
}
put_byte() { # file, offset, byte as printf writes it
    # shellcheck disable=SC2059  # the byte is an escape
    printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}
# Both ranks get the same data again.
restore() {
    rm -rf a b
    mkdir a b
    cp -r set a/set
    cp -r set b/set
}
data_set set 96 40 8
set -- --data set --model mlp --steps 2 --quiet --log "$work/log" --checkpoint "$work/checkpoint"
name=train

# ---- Ranks with different data ----

restore
channel_labels 96 >b/set/train-labels-idx1-ubyte
run_apart "$train" "$@"
is_refusal 'the training set of set is not the same on all ranks: rank 1 has other contents than rank 0'
result $? "another file of labels on one rank is refused"

restore
put_byte b/set/train-images-idx3-ubyte 3000 '\001'
run_apart "$train" "$@"
is_refusal 'the training set of set is not the same on all ranks: rank 1 has'
result $? "a single pixel that differs is refused"
run_apart "$train" "$@" --sync localsgd
is_refusal 'the training set of set is not the same on all ranks: rank 1 has'
result $? "and by modes that exchange parameters, too"

restore
head -c 16 set/t10k-images-idx3-ubyte >b/set/t10k-images-idx3-ubyte
head -c 2560 /dev/zero >>b/set/t10k-images-idx3-ubyte
run_apart "$train" "$@"
is_refusal 'the test set of set is not the same on all ranks: rank 1 has other'
result $? "black test images on one rank are refused"
name=sweep
run_apart "$sweep" --data set --model mlp --steps 2 --out "$work/swept" --quiet -- "lazy: --sync lazy"
is_refusal 'the test set of set is not the same on all ranks: rank 1 has other' && [ ! -e swept ]
result $? "sweep refuses them, too"
for program in mnist mnist-daso; do
    run_apart "$programs/$program" set
    has_failed && [ "$(grep -c '^error: ' stderr)" = 1 ] &&
        grep -q '^error: .*the test set is not the same on all ranks: rank 1 has' stderr
    result $? "$program refuses them, too"
done
name=train

# shellcheck disable=SC2016
run 1 sh -c 'cd a && exec "$@"' sh "$train" "$@" : -n 2 sh -c 'cd b && exec "$@"' sh "$train" "$@"
is_refusal 'the test set of set is not the same on all ranks: ranks 1 and 2 have other'
result $? "all ranks that differ from rank 0 are listed"

restore
gzip b/set/train-images-idx3-ubyte
run_apart "$train" "$@"
[ "$status" = 0 ] && [ -e checkpoint ]
result $? "files that hold the same in another form are not refused"
mv checkpoint parameters
rm -f log

restore
cp parameters a/start
cp parameters b/start
put_byte b/start $(($(wc -c <b/start) - 3)) '\001'
run_apart "$train" "$@" --load start
is_refusal 'the file start of --load is not the same on all ranks: rank 1 has other contents than rank 0'
result $? "another file of --load on one rank is refused"
rm b/start
run_apart "$train" "$@" --load start
good=$status
one=$(field param_hash log)
cp a/start b/start
rm -f log checkpoint
run_apart "$train" "$@" --load start
[ "$good$status" = 00 ] && [ -n "$one" ] && [ "$one" = "$(field param_hash log)" ]
result $? "a rank without the file takes what rank 0 has read"
rm -f log checkpoint

# ---- Labels ----

set -- --model mlp --steps 2 --quiet --log "$work/log" --checkpoint "$work/checkpoint"

# The third class is label 2: label 10 of a single image makes a network of 11 classes.
labelled() { # folder, image, label in octal, of the file (train or t10k)
    rm -rf "$1"
    cp -r set "$1"
    put_byte "$1/$4-labels-idx1-ubyte" $((8 + $2)) "\\$3"
}
labelled stray 5 003 train
run 2 "$train" "$@" --data stray
is_refusal 'label 3 occurs in the training set of stray alone \(1 image, the first is image 5\): correct .* --classes 4'
result $? "a stray label of the training set is refused, which leaves no gap"
labelled stray 7 003 t10k
run 2 "$train" "$@" --data stray
is_refusal 'label 3 occurs in the test set of stray alone \(1 image, the first is image 7\)'
result $? "a label of the test set alone is refused"
labelled stray 7 377 t10k
run 2 "$train" "$@" --data stray
is_refusal 'label 255 occurs in the test set of stray alone'
result $? "one that leaves a gap is told with its image"
put_byte stray/train-labels-idx1-ubyte 20 '\377'
run 2 "$train" "$@" --data stray
is_refusal 'the labels of stray go up to 255, but no image has label 3: correct'
result $? "a gap is refused in labels of both sets"
{ printf '\000\000\014\001\000\000\000\140\177\377\377\376' && head -c 380 /dev/zero; } >stray/train-labels-idx1-ubyte
run 2 "$train" "$@" --data stray
is_refusal 'label 2147483646 occurs in the training set of stray alone \(1 image, the first is image 0\)'
result $? "a label of a billion needs no memory for a billion classes"

labelled stray 5 003 train
run 2 "$train" "$@" --data stray --classes 3
is_refusal 'image 5 of the training set of stray has label 3, and --classes 3 allows 0 to 2: correct'
result $? "a label outside --classes is refused"
for classes in 4 9; do
    run 2 "$train" "$@" --data stray --classes $classes
    [ "$status" = 0 ] && [ ! -s stderr ] && grep -aq "\"fc3.bias\":{\"dtype\":\"F32\",\"shape\":\[$classes\]" checkpoint &&
        grep -aq "\"isotherm.classes\":\"$classes\"" checkpoint
    result $? "--classes $classes makes a network of that many classes"
    rm -f log checkpoint
done

printf '1,2,3\n' >text.h5
run 2 "$train" "$@" --data text.h5
is_refusal 'text\.h5 (does not begin as an HDF5 file does|cannot be read, because this build has no HDF5)'
result $? "a file .h5 that is none is refused"

# ---- Going on ----

set -- --model mlp --steps 4 --quiet --log "$work/log"
# A file is the same by whatever path.
run 2 "$train" "$@" --data set --checkpoint "$work/checkpoint" --checkpoint-every 2 --classes 3
rm -f checkpoint.step-000000000004*
run 2 "$train" "$@" --data set --checkpoint "$work/checkpoint" --resume checkpoint
[ "$status" = 0 ] && [ -n "$(field param_hash log)" ]
result $? "a run is resumed without --classes where the labels show as many"
rm -f checkpoint.step-000000000004*
rm -f log
run 2 "$train" "$@" --data set --resume checkpoint --classes 4 --checkpoint "$work/other"
is_refused=1
[ "$status" != 0 ] && grep -q '^train: .* was saved with --classes 3, and this run has --classes 4: resume' stderr && is_refused=0
result $is_refused "a run is not resumed with other --classes"
labelled changed 5 001 train
run 2 "$train" "$@" --data changed --resume checkpoint --checkpoint "$work/other"
is_refused=1
[ "$status" != 0 ] && is_refused=0
grep -qE "^train: .* was saved with --data's checksum [0-9a-f]{16}, and this run has --data's checksum [0-9a-f]{16}: resume" stderr ||
    is_refused=1
result $is_refused "a run is not resumed with a label that differs"

# ---- Part of the test set ----

run 2 "$train" --data set --model mlp --steps 2 --log "$work/log" --test-limit 7
one=$(field test_loss log)
[ "$status" = 0 ] && [ "$(field test_images log)" = 7 ] && grep -q '^test      the first 7 images of 40 (--test-limit)$' stdout
result $? "--test-limit is told of"
head -c $((16 + 7 * 64)) set/t10k-images-idx3-ubyte | tail -c $((7 * 64)) >seven
rm -rf part
cp -r set part
{ printf '\000\000\010\003' && be32 7 && be32 8 && be32 8 && cat seven; } >part/t10k-images-idx3-ubyte
labels 7 >part/t10k-labels-idx1-ubyte
run 2 "$train" --data part --model mlp --steps 2 --quiet --log "$work/log" --overwrite
[ "$status" = 0 ] && [ -n "$one" ] && [ "$(field test_loss log)" = "$one" ]
result $? "it tests with the first images of the set, however many ranks share them"
run 3 "$train" --data set --model mlp --steps 1 --batch 3 --quiet --log "$work/log" --test-limit 2 --overwrite
[ "$status" = 0 ] && [ "$(field test_images log)" = 2 ]
result $? "fewer images than ranks may be tested"
rm -f log checkpoint*
for schedule in constant plateau; do
    rm -f checkpoint*
    set -- --data set --model mlp --quiet --checkpoint "$work/checkpoint" --schedule $schedule
    run 2 "$train" "$@" --steps 3 --checkpoint-every 2 --test-limit 7
    rm -f checkpoint.step-000000000003*
    run 2 "$train" "$@" --steps 3 --resume checkpoint --test-limit 9
    if [ $schedule = constant ]; then
        [ "$status" = 0 ]
        result $? "a run is resumed with another --test-limit"
    else
        [ "$status" != 0 ] && grep -q 'saved with --test-limit 7, and this run has --test-limit 9: resume' stderr
        result $? "but not where the test loss sets the learning rate"
    fi
done

# ---- Progress of a test ----

# Two by two, 600 images take resnet18 some seconds.
data_set many 12 600 8
run 1 "$train" --data many --model resnet18 --steps 1 --batch 2
[ "$status" = 0 ] && [ "$(grep -cE '^test [0-9]+/300 batches  ' stdout)" -ge 1 ]
result $? "a test that takes long tells how far it is"
run 1 "$train" --data set --model mlp --steps 1
[ "$status" = 0 ] && ! grep -q '^test [0-9]' stdout
result $? "and one that is over soon does not"

print_plan
