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
    yes | head -n "$1" | awk '{ printf "%c", NR % 3 + 1 }'
}
data_set() { # folder, training images, test images, side
    mkdir "$1"
    images "$2" "$4" >"$1/train-images-idx3-ubyte"
    labels "$2" >"$1/train-labels-idx1-ubyte"
    images "$3" "$4" >"$1/t10k-images-idx3-ubyte"
    labels "$3" >"$1/t10k-labels-idx1-ubyte"
}
