#!/bin/sh
# SPDX-License-Identifier: MIT
# Trains on digits, lets predict classify them from the checkpoint, and prints the results as TAP.
# usage: check_predict.sh, in the build tree
# Not -e: what fails here is a result, not the end.
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
predict=$PWD/bin/predict
make_images=$PWD/tests/make_images
enter_work

refused() { # what is wrong, pattern of the sentence, arguments of predict...
    name=$1
    sentence=$2
    shift 2
    run_alone "$predict" "$@"
    good=0
    [ "$status" != 0 ] && [ "$status" -lt 124 ] || good=1
    [ ! -s stdout ] && [ "$(wc -l <stderr)" = 1 ] || good=1
    grep -qE "^predict: .*$sentence" stderr || good=1
    result "$good" "refused with one sentence: $name"
}
# Trains on a folder, then compares what train and predict say of its 500 test images.
agrees() { # model, folder, ranks, arguments of train...
    model=$1
    folder=$2
    ranks=$3
    shift 3
    start=$train
    # shellcheck disable=SC2086  # flags are several words
    [ "$ranks" = 1 ] || start="$launcher $flags -n $ranks $train"
    # shellcheck disable=SC2086
    run_alone $start --data "$folder" --model "$model" --quiet --overwrite --checkpoint "$model" --log "$model.jsonl" "$@"
    good=$status
    expected=$(field test_accuracy "$model.jsonl" | awk '{ printf "(%.0f of 500)", 500 * $1 }')
    run_alone "$predict" --checkpoint "$model" "$folder"/t10k-images-idx?-ubyte \
        --labels "$folder/t10k-labels-idx1-ubyte"
    [ "$status" = 0 ] && grep -qF "$expected" stdout || good=1
    # As one that PyTorch wrote: the classes are those of the last layer.
    sed 's/"isotherm\.classes/"isothermXclasses/' "$model" >unknown
    run_alone "$predict" --checkpoint unknown "$folder"/t10k-images-idx?-ubyte --labels "$folder/t10k-labels-idx1-ubyte"
    [ "$status" = 0 ] && grep -qF "$expected" stdout || good=1
    result "$good" "predict finds the accuracy that train reported: $model on $ranks rank(s), $expected"
}

"$make_images" grey 2000 500 1 28
"$make_images" colour 500 500 3 32

agrees lenet colour 1 --steps 60
agrees lenet colour 1 --steps 60 --activations tanh,elu
grep -aq '"isotherm.activations":"tanh,elu"' lenet
result $? "and that had other activations"
run_alone "$train" --data colour --model lenet --quiet --steps 2 --load lenet
[ "$status" != 0 ] && grep -q 'lenet has the activations tanh,elu, and this network relu: give --activations tanh,elu' stderr
result $? "train does not load it into a network of others"
# The number of a choice is the f32 at its offset behind the header.
cp lenet chosen
header=$(od -An -tu4 -N4 lenet)
offset=$(sed -n '1s/.*"act1\.choice":{[^}]*"data_offsets":\[\([0-9]*\),.*/\1/p' lenet)
printf '\000\000\340\100' | dd of=chosen bs=1 seek=$((header + 8 + offset)) conv=notrunc 2>dump # 7
refused "a choice that no activation has" "chosen is damaged: a layer's choice is none of its activations$" \
    --checkpoint chosen colour/t10k-images-idx?-ubyte
run_alone "$train" --data colour --model lenet --quiet --steps 2 --load chosen --activations tanh,elu
[ "$status" != 0 ] && grep -q "^train: chosen is damaged: a layer's choice is none of its activations; load another file$" stderr
result $? "and train refuses it with one sentence"
# As one that PyTorch wrote, of a single function.
run_alone "$train" --data colour --model lenet --quiet --steps 20 --overwrite --checkpoint single --activations elu
run_alone "$predict" --checkpoint single colour/t10k-images-idx?-ubyte
cp stdout told
sed 's/"isotherm\.activations/"isothermXactivations/' single >unknown
run_alone "$predict" --checkpoint unknown colour/t10k-images-idx?-ubyte --activations elu
[ "$status" = 0 ] && cmp -s stdout told
result $? "an option gives the activations that a file without metadata does not name"
agrees resnet18 colour 1 --steps 6 --batch 8
agrees mlp grey 1 --steps 30 --dtype f64
grep -aq '"F64"' mlp
result $? "and that was in f64"
agrees mlp grey 1 --steps 30 --dtype bf16
grep -aq '"BF16"' mlp
result $? "and that was in bf16"
agrees mlp grey 1 --steps 60 --checkpoint-every 50
[ "$launcher" = no ] || agrees cnn grey 2 --steps 10 --mean 0.5 --std 0.25

images=grey/t10k-images-idx3-ubyte
run_alone "$predict" --checkpoint mlp "$images"
good=$status
[ "$(wc -l <stdout)" = 500 ] || good=1
awk '$1 != NR - 1 || $2 !~ /^[0-9]$/ || !($3 > 0.1 && $3 <= 1) { exit 1 }' stdout || good=1
result "$good" "a line for each image has its number, its class and a probability"
mv stdout plain

tail -c +9 grey/t10k-labels-idx1-ubyte | od -An -v -tu1 -w1 | awk '{ print $1 }' >labels
right=$(awk 'NR == FNR { label[NR] = $1; next } $2 == label[FNR]' labels plain | wc -l)
run_alone "$predict" --checkpoint mlp "$images" --labels grey/t10k-labels-idx1-ubyte
grep -qF "($right of 500)" stdout
result $? "the accuracy counts the classes that are printed"

run_alone "$predict" --checkpoint mlp "$images" --top-k 10 --logits
good=$status
# Of each line: 10 pairs by falling probability, of all classes once, which come to 1; their logits.
awk 'NF != 31 { exit 1 } {
    sum = seen = 0
    for (i = 2; i <= 20; i += 2) {
        difference = exp($(22 + $i) - $(22 + $2)) * $3 - $(i + 1)
        if (difference ^ 2 > 1e-7 || (i > 2 && $(22 + $i) > $(22 + $(i - 2)))) exit 1
        sum += $(i + 1)
        seen += 2 ^ $i
    }
    if ((sum - 1) ^ 2 > 1e-6 || seen != 1023) exit 1
}' stdout || good=1
cut -d ' ' -f 1-3 stdout | cmp -s - plain || good=1
result "$good" "--top-k and --logits give all classes in order, and logits whose softmax they are"
run_alone "$predict" --checkpoint mlp "$images" --top-k 3
cp stdout top
right=$(awk 'NR == FNR { label[NR] = $1; next } $2 == label[FNR] || $4 == label[FNR] || $6 == label[FNR]' labels top | wc -l)
run_alone "$predict" --checkpoint mlp "$images" --labels grey/t10k-labels-idx1-ubyte --top-k 3
grep -qF ", top-3 accuracy" stdout && grep -qF "($right of 500)" stdout
result $? "the accuracy of --top-k counts labels among the classes that are printed"

gzip -k "$images"
run_alone "$predict" --checkpoint mlp --data "$images.gz"
[ "$status" = 0 ] && cmp -s stdout plain
result $? "compressed images are read too"

# As one that PyTorch wrote: without what train says in its metadata.
sed 's/"isotherm\./"isothermX/g' mlp >bare
set -- "$(sed -n '1s/.*"isotherm.mean":"\([^"]*\)".*/\1/p' mlp)" "$(sed -n '1s/.*"isotherm.std":"\([^"]*\)".*/\1/p' mlp)"
run_alone "$predict" --checkpoint bare "$images" --model mlp --mean "$1" --std "$2"
[ "$status" = 0 ] && cmp -s stdout plain
result $? "options stand in for metadata that are not there"
run_alone "$predict" --checkpoint mlp "$images" --mean 0.9 --std 0.1
[ "$status" = 0 ] && ! cmp -s stdout plain
result $? "an option goes before the metadata"

refused "saved state in place of the checkpoint" \
    'mlp.step-000000000060 is a state for train --resume, not a checkpoint: give the checkpoint .*, mlp$' \
    --checkpoint mlp.step-000000000060 "$images"
cp mlp bad
header=$(od -An -tu4 -N4 mlp)
printf '\000\000\300\177' | dd of=bad bs=1 seek=$((header + 8)) conv=notrunc 2>dump
refused "a parameter that is no number, which a relu hides" \
    'bad: [a-z0-9.]* is not finite, its training diverged: give another file' --checkpoint bad "$images"
refused "a network of other activations than those of the checkpoint" 'lenet is not a checkpoint of this lenet: .*act1.choice' \
    --checkpoint lenet colour/t10k-images-idx?-ubyte --model lenet
refused "a checkpoint without metadata" 'bare has no metadata of train: give --model, --mean and --std$' \
    --checkpoint bare "$images"
refused "no model" 'metadata of train: give --model$' --checkpoint bare "$images" --mean 0 --std 1
refused "no normalisation" 'metadata of train: give --mean and --std$' --checkpoint bare "$images" --model mlp
refused "a checkpoint of another network without metadata" 'bare is not a checkpoint of this resnet18: it has no vector fc.bias' \
    --checkpoint bare "$images" --model resnet18 --mean 0 --std 1
# The same number of bytes, so that the header keeps its length.
damaged() { # entry, value, pattern of what it must be
    old=$(sed -n '1s/.*"isotherm\.'"$1"'":"\([^"]*\)".*/\1/p' mlp)
    new=$(printf "%-${#old}.${#old}s" "$2")
    sed "1s/\"isotherm\\.$1\":\"$old\"/\"isotherm.$1\":\"$new\"/" mlp >bad
    if [ "$old" != "$new" ] && [ "$(wc -c <bad)" = "$(wc -c <mlp)" ]; then
        refused "a damaged entry $1" "bad has a damaged metadata entry isotherm\.$1: .*$3" --checkpoint bad "$images"
    else
        result 1 "the entry $1 can be damaged"
    fi
}
damaged model nlp '"nlp" is not mlp\|cnn\|lenet\|resnet18\|resnet50: give another checkpoint$'
damaged dtype i64 '"i64" is not f32\|f64\|bf16\|f16: give another checkpoint$'
damaged shape '1 28' '"1 28 *" is not channels, height and width: give another checkpoint$'
damaged shape '1 28 0x' '"1 28 0x *" is not channels, height and width'
damaged classes 1x '"1x" is not a number of classes'
damaged classes 11 '"11" is not the number of outputs of its network'
damaged mean '0.5,0.5' 'is not a number for each channel'
damaged mean '0.123456 0.123456' 'is not a number for each channel|2 numbers for images of 1 channel'
damaged std inf 'is not a number for each channel'
sed '1s/"isotherm\.model":"mlp"/"isotherm.model":"\\n "/' mlp >bad
refused "a line break in an entry" 'bad has a damaged metadata entry isotherm\.model: "\? "' --checkpoint bad "$images"
run_alone "$predict" --checkpoint bad "$images" --model mlp
[ "$status" = 0 ] && cmp -s stdout plain
result $? "an option stands in for a damaged entry, too"
fails_on_full_output predict "$predict" --checkpoint mlp "$images" && fails_on_full_output predict "$predict" --help
result $? "a full disk for the output is told of"
refused "neither checkpoint nor images" 'no checkpoint and no images were given: give --checkpoint FILE and an IDX'
refused "no checkpoint" 'no checkpoint was given' "$images"
refused "more classes than there are" '--top-k 11: the network has only 10 classes' --checkpoint mlp "$images" --top-k 11
refused "a value of a switch" '--logits takes no value' --checkpoint mlp "$images" --logits=1
refused "logits in place of lines" '--labels prints the accuracy instead of one line' --checkpoint mlp "$images" \
    --logits --labels grey/t10k-labels-idx1-ubyte
refused "no images" 'no images were given' --checkpoint mlp
refused "two files of images" 'not also b' --checkpoint mlp a b
refused "two files of images, one by --data" 'not also b' --checkpoint mlp a --data b
refused "an option given twice" '--top-k is given twice: give it once' --checkpoint mlp "$images" --top-k 2 --top-k 3
refused "an unknown option" 'unknown option --frobnicate' --frobnicate 1
refused "an option without its value" '--checkpoint needs a value' --checkpoint
refused "a missing checkpoint" 'nowhere' --checkpoint nowhere "$images"
refused "missing images" 'nowhere' --checkpoint mlp nowhere
refused "images in place of the checkpoint" 'not a safetensors file' --checkpoint "$images" "$images"
refused "a checkpoint in place of images" 'mlp' --checkpoint mlp mlp
refused "labels in place of images" 'has 1 dimension, but images have 2 .*: give a file of images' --checkpoint mlp grey/t10k-labels-idx1-ubyte
printf '\0\0\015\003\0\0\0\001\0\0\0\001\0\0\0\001\0\0\0\0' >floats
refused "images that are no bytes" \
    'floats has elements of type 0x0d, as byte 2 of its header says, but images are unsigned bytes .0x08.: convert' \
    --checkpoint mlp floats
refused "labels of other images" '500 images but .* 2000 labels' --checkpoint mlp "$images" \
    --labels grey/train-labels-idx1-ubyte
refused "images of another size" '3 x 32 x 32, but mlp was trained on 1 x 28 x 28' --checkpoint mlp \
    colour/t10k-images-idx4-ubyte
refused "another model" 'not a checkpoint of this cnn: .*missing \(conv1.weight' --checkpoint mlp "$images" --model cnn
refused "another number of classes" 'tensor fc3.weight has shape \[10, 512\] in the state_dict and \[7, 512\]' \
    --checkpoint mlp "$images" --classes 7
refused "an unknown model" '--model perceptron is not supported: give mlp' --checkpoint mlp "$images" --model perceptron
"$make_images" small 1 20 1 12
refused "images too small for the model" '12 x 12, too small for --model lenet' --checkpoint bare \
    small/t10k-images-idx3-ubyte --model lenet --classes 10 --mean 0 --std 1
refused "numbers for other channels" '2 numbers for images of 1 channel' --checkpoint mlp "$images" --mean 0,1 \
    --std 1,1
refused "a mean without a deviation" 'belong together' --checkpoint mlp "$images" --mean 0
refused "more threads than there can be" 'from 1 to 1024' --checkpoint mlp "$images" --threads 200000
head -c 100000 mlp >short
refused "a checkpoint that was cut short" 'short' --checkpoint short "$images"

run_alone "$train" --data grey --model lenet --steps 1 --quiet --load mlp
[ "$status" != 0 ] && [ "$(grep -c '^train: mlp has the parameters of --model mlp, and this run has --model lenet: give' stderr)" = 1 ]
result $? "train says which model --load has"
run_alone "$train" --data grey --model lenet --steps 1 --quiet --load bare
[ "$status" != 0 ] && [ "$(grep -c '^train: cannot load bare for --model lenet: .*conv1.weight' stderr)" = 1 ]
result $? "train says which tensors of --load do not fit, where nothing tells the model"

run_alone "$predict" --device cuda --help
[ "$status" = 0 ] && grep -q '^  --device cpu|cuda|cuda:N ' stdout && [ ! -s stderr ] && cp stdout help
result $? "--help is printed beside other options, too"
run_alone "$predict" --version --threads 2
[ "$status" = 0 ] && grep -q '^isotherm [0-9]' stdout && [ ! -s stderr ]
result $? "so is --version"
[ "$(grep -c '^  --' help)" = 14 ] && ! grep -vE '^  --[a-z-]+( [^ ]+)?$|^  --.{24}[^ ]|^ {28}[^ ]|^[^ ]|^$' help
result $? "its columns are straight"
run_alone "$predict" --help
[ "$status" = 0 ] && [ "$(grep -c '^  --checkpoint ' stdout)" = 1 ]
result $? "--help is printed"

run_alone "$predict" -h
[ "$status" = 0 ] && [ "$(grep -c '^  --checkpoint ' stdout)" = 1 ]
result $? "and by -h"
refused "a misspelt option" 'unknown option --chekpoint: did you mean --checkpoint\?' --chekpoint c images

print_plan
