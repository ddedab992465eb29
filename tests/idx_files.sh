# SPDX-License-Identifier: MIT
# Sourced by the scripts that need small data sets: writes IDX files.
# shellcheck shell=sh

be32() { # number below 2^16
    # shellcheck disable=SC2059  # the escapes are made here
    printf "\\000\\000\\$(printf %03o $(($1 / 256)))\\$(printf %03o $(($1 % 256)))"
}
images() { # count, side: an IDX file of square images
    printf '\000\000\010\003' && be32 "$1" && be32 "$2" && be32 "$2"
    yes 'Isotherms are lines of equal temperature' | head -c $(($1 * $2 * $2))
}
labels() { # count: an IDX file of labels 0, 1, 2
    printf '\000\000\010\001' && be32 "$1"
    yes | head -n "$1" | awk '{ printf "%c", (NR - 1) % 3 + 48 }' | tr 012 '\000\001\002'
}
# Images of 3 x 32 x 32: an image of label c is white in channel c and nearly black in the others.
colours() { # count
    printf '\000\000\010\004' && be32 "$1" && be32 3 && be32 32 && be32 32
    yes "$(printf '\377')" | tr -d '\n' | head -c 1024 >white
    yes "$(printf '\003')" | tr -d '\n' | head -c 1024 >black
    colour=0
    while [ $colour -lt "$1" ]; do
        colour=$((colour + 1))
        case $((colour % 3)) in
        0) cat white black black ;;
        1) cat black white black ;;
        2) cat black black white ;;
        esac
    done
    rm white black
}
channel_labels() { # count: an IDX file of labels 1, 2, 0
    printf '\000\000\010\001' && be32 "$1"
    yes | head -n "$1" | awk '{ printf "%c", NR % 3 + 48 }' | tr 012 '\000\001\002'
}
colour_set() { # folder, training images, test images
    mkdir "$1"
    colours "$2" >"$1/train-images-idx3-ubyte"
    channel_labels "$2" >"$1/train-labels-idx1-ubyte"
    colours "$3" >"$1/t10k-images-idx3-ubyte"
    channel_labels "$3" >"$1/t10k-labels-idx1-ubyte"
}
data_set() { # folder, training images, test images, side
    mkdir "$1"
    images "$2" "$4" >"$1/train-images-idx3-ubyte"
    labels "$2" >"$1/train-labels-idx1-ubyte"
    images "$3" "$4" >"$1/t10k-images-idx3-ubyte"
    labels "$3" >"$1/t10k-labels-idx1-ubyte"
}
