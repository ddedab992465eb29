#!/bin/sh
# SPDX-License-Identifier: MIT
# Trains on folders of pictures, good and damaged ones, and prints the results as TAP.
# usage: check_pictures.sh, in the build tree; uses MPIRUN and MPIRUN_FLAGS
# Not -e: what fails here is a result, not the end.
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
need_launcher
make_pictures=$PWD/tests/make_pictures
enter_work
set -- --model mlp --batch 6 --quiet --log "$work/log"

"$make_pictures" set 24 6
if [ $? = 77 ]; then
    echo "1..0 # SKIP this build has no libjpeg or libpng"
    exit 0
fi

# ---- Helpers ----

# One sentence on stderr of which this is a pattern.
is_told() { # pattern
    has_failed && one_sentence train "$1" stderr && ! has_crashed stderr
}
# The same before there is a log.
is_refusal() { is_told "$1" && [ ! -e log ]; }
has_learned() { # number of test images
    [ "$status" = 0 ] && [ ! -s stderr ] && [ "$(field test_images log)" = "$1" ] &&
        [ "$(field test_accuracy log)" = 1 ]
}
# A copy of the set, to be damaged.
restore() {
    rm -rf log copy
    cp -r set copy
}

# ---- Training ----

for ranks in 1 3; do
    rm -f log
    run $ranks "$train" --data set "$@" --image-size 12 --epochs 3 --lr 0.001
    has_learned 18
    result $? "a network learns three colours from a folder on $ranks ranks"
done
one=$(field param_hash log)
rm -f log
run 3 "$train" --data set "$@" --image-size 12 --epochs 3 --lr 0.001 --loader-threads 3
[ "$status" = 0 ] && [ -n "$one" ] && [ "$(field param_hash log)" = "$one" ]
result $? "more loader threads give the same parameters"

rm -f log
run 3 "$train" --data set "$@" --image-size 12 --epochs 3 --lr 0.001 --crop 0.3 --flip 0.5
has_learned 18 && [ "$(field param_hash log)" != "$one" ]
result $? "it learns them from random parts, too"

"$make_pictures" one 30 0
rm -f log
run 3 "$train" --data one "$@" --image-size 12 --epochs 3 --lr 0.001 --validation 0.2
has_learned 18
result $? "without val, --validation keeps a part of the pictures for the test"
rm -f log
run 2 "$train" --data one "$@"
is_refusal 'one holds the pictures of one set: give --validation'
result $? "without it such a folder is refused"

rm -f log
run 1 "$train" --data set --model resnet50 --image-size 32 --batch 2 --steps 1 --test-limit 2 --log "$work/log"
[ "$status" = 0 ] && grep -q '^data      set: 72 images of 3 x 32 x 32, 3 classes$' stdout &&
    grep -q '^model     resnet50, 23506499 parameters, ' stdout
result $? "resnet50 trains on a folder of pictures"

# ---- What cannot be ----

rm -f log
run 2 "$train" "$@" --data digits --image-size 32
is_refusal '--image-size needs a folder of pictures, and --data digits is none'
result $? "--image-size is refused for other data"
run 2 "$train" "$@" --data digits --crop 0.5
is_refusal 'only pictures in class folders can be cut at random: give no crop'
result $? "so is --crop"
run 2 "$train" "$@" --data set --classes 2
is_refusal 'set has 3 class folders, and --classes 2 allows fewer'
result $? "fewer --classes than folders are refused"

# One of the ranks reads it, and all of them end.
restore
file="copy/train/green/picture 5.JPEG"
head -c 300 "set/train/green/picture 5.JPEG" >"$file"
run 3 "$train" "$@" --data copy --image-size 12 --epochs 1
# The other ranks may tell that they were stopped.
has_failed && ! has_crashed stderr && [ "$(grep -c '^train: rank' stderr)" = 1 ] &&
    grep -qE '^train: rank [0-2]: the JPEG file copy/train/green/picture 5[.]JPEG is truncated or damaged \(.*\): replace' stderr
result $? "a truncated JPEG file is refused with its name"
restore
file="copy/val/vivid blue/picture 26.png"
head -c 100 "set/val/vivid blue/picture 26.png" >"$file"
run 1 "$train" "$@" --data copy --image-size 12 --steps 1
is_told '.*the PNG file copy/val/vivid blue/picture 26[.]png is truncated or damaged \(the file ends too early'
result $? "so is a PNG file of the test set, when it is read"
restore
echo "no picture" >"copy/train/a red one/picture 0.png"
run 1 "$train" "$@" --data copy --image-size 12 --epochs 1
is_told '.*copy/train/a red one/picture 0[.]png does not begin as a JPEG or PNG file does: convert or remove it'
result $? "a file that is no picture is refused"
restore
mkdir "copy/train/an empty one"
run 3 "$train" "$@" --data copy
is_refusal 'the class folder copy/train/an empty one holds no JPEG or PNG file: fill or remove it'
result $? "a class without pictures is refused"

# Rank 1 sees another folder.
restore
mkdir a b
cp -r set a/set
mv copy b/set
rm "b/set/train/green/picture 3.JPEG"
# shellcheck disable=SC2016  # $@ belongs to the inner shells
run 1 sh -c 'cd a && exec "$@"' sh "$train" "$@" --data set : -n 2 sh -c 'cd b && exec "$@"' sh "$train" "$@" --data set
is_refusal 'the training set of set is not the same on all ranks: ranks 1 and 2 have other contents than rank 0'
result $? "ranks that see other pictures are refused"

print_plan
