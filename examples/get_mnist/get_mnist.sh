#!/bin/sh
# SPDX-License-Identifier: MIT
# Fetches MNIST or Fashion-MNIST, as published, into a folder for train --data, mnist and the others.
set -u
export LC_ALL=C

usage() {
    cat <<'END'
Downloads MNIST or Fashion-MNIST into a folder: get-mnist [OPTION]... FOLDER

  --fashion       download Fashion-MNIST (articles of clothing) instead of the digits
  --mirror URL    download from URL; repeat it to try several in turn
                  (default: $ISO_MNIST_MIRROR, a list of URLs separated by spaces, or public mirrors)
  --sums FILE     use these checksums, in the format of sha256sum, for a mirror with other files
  --help          print this text
  --version       print the version

Files that are in the folder with the right checksum are not downloaded again. One with another checksum is renamed to
NAME.old. Needs curl or wget.
END
}

fail() { # sentence
    echo "get-mnist: $1" >&2
    exit 1
}
unsaid=
say() { # line
    echo "$1" 2>/dev/null || unsaid=yes
}
end() { # of a program that has done its work
    [ -z "$unsaid" ] || fail "cannot write to standard output: is the disk full?"
    exit 0
}

# ---- What there is to fetch: SHA-256, name ----

files='train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz t10k-images-idx3-ubyte.gz t10k-labels-idx1-ubyte.gz'
mnist_sums() {
    cat <<'END'
440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609  train-images-idx3-ubyte.gz
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c  train-labels-idx1-ubyte.gz
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6  t10k-images-idx3-ubyte.gz
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6  t10k-labels-idx1-ubyte.gz
END
}
mnist_mirrors='https://ossci-datasets.s3.amazonaws.com/mnist
https://storage.googleapis.com/cvdf-datasets/mnist'

fashion_sums() {
    cat <<'END'
3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84  train-images-idx3-ubyte.gz
a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845  train-labels-idx1-ubyte.gz
346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073  t10k-images-idx3-ubyte.gz
67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5  t10k-labels-idx1-ubyte.gz
END
}
fashion_mirrors='http://fashion-mnist.s3-website.eu-central-1.amazonaws.com
https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion'

# ---- Options ----

fashion=no
mirrors=
sums_file=
folder=
while [ $# -gt 0 ]; do
    case $1 in
    --mirror | --sums) [ -n "${2:-}" ] || fail "$1 needs a value: see --help" ;;
    esac
    case $1 in
    --fashion) fashion=yes ;;
    --mirror)
        mirrors="$mirrors $2"
        shift
        ;;
    --sums)
        sums_file=$2
        shift
        ;;
    --help | -h)
        say "$(usage)"
        end
        ;;
    --version)
        say "isotherm @PACKAGE_VERSION@"
        end
        ;;
    -*) fail "unknown option $1: see --help" ;;
    *)
        [ -z "$folder" ] || fail "give one folder, not also $1"
        [ -n "$1" ] || fail "the name of the folder is empty"
        folder=$1
        ;;
    esac
    shift
done
[ -n "$folder" ] || fail "give the folder to fetch into, as in: get-mnist mnist"

[ -n "$mirrors" ] || mirrors=${ISO_MNIST_MIRROR:-}
if [ $fashion = yes ]; then
    title=Fashion-MNIST
    mirrors=${mirrors:-$fashion_mirrors}
    sums=$(fashion_sums)
else
    title=MNIST
    mirrors=${mirrors:-$mnist_mirrors}
    sums=$(mnist_sums)
fi
if [ -n "$sums_file" ]; then
    sums=$(cat "$sums_file" 2>/dev/null) || fail "cannot read the checksums $sums_file"
fi

sum_of() { # name; a * before it marks binary files
    echo "$sums" | sed -n "s/^\([0-9a-fA-F]\{64\}\) [ *]$1\$/\1/p" | tr A-F a-f
}
for file in $files; do
    [ -n "$(sum_of "$file")" ] || fail "$sums_file has no SHA-256 of $file"
done

# ---- Tools ----

have() { # command
    command -v "$1" >/dev/null 2>&1
}

# Fetches a file. 2: it could not be written; any other failure is the mirror's.
if have curl; then
    fetch() { # URL, file
        curl --fail --silent --location --connect-timeout 20 --speed-limit 1000 --speed-time 30 \
            --output "$2" "$1" 2>/dev/null
        case $? in
        0) return 0 ;;
        22) reason='does not have it' ;;
        5 | 6 | 7 | 28 | 35) reason='cannot be reached' ;;
        18 | 56) reason='broke off' ;;
        23) return 2 ;;
        *) reason='failed' ;;
        esac
        return 1
    }
elif have wget; then
    fetch() { # URL, file
        wget -q -T 30 -t 2 -O "$2" "$1" 2>/dev/null
        case $? in
        0) return 0 ;;
        3) return 2 ;;
        4) reason='cannot be reached' ;;
        8) reason='does not have it' ;;
        *) reason='failed' ;;
        esac
        return 1
    }
else
    fail "neither curl nor wget is here: install one of them"
fi

if have sha256sum; then
    checksum() { sha256sum <"$1"; }
elif have shasum; then
    checksum() { shasum -a 256 <"$1"; }
elif have openssl; then
    checksum() { openssl dgst -sha256 -r <"$1"; }
else
    fail "none of sha256sum, shasum and openssl is here to check what is fetched: install one of them"
fi
is_sound() { # file, SHA-256
    [ "$(checksum "$1" 2>/dev/null | cut -d ' ' -f 1)" = "$2" ]
}

# ---- Fetching ----

# A file gets its name when it is whole and checked, so that none is ever half there.
part=
made=0 # folders that were made, from the last one up
clean_up() {
    [ -z "$part" ] || rm -f "$part"
    while [ $made -gt 0 ]; do # those that are empty
        rmdir "$folder" 2>/dev/null || return
        folder=$(above "$folder")
        made=$((made - 1))
    done
}
trap clean_up EXIT
trap 'exit 1' HUP INT TERM

# It may be the user's own data set. It keeps its name until the new file takes it. If it is sound, another get-mnist has
# fetched it meanwhile.
keep_old() { # name, SHA-256
    [ -e "$folder/$1" ] && ! is_sound "$folder/$1" "$2" || return 0
    if ! ln "$folder/$1" "$folder/$1.old" 2>/dev/null; then # or the file system has no hard links
        ! is_sound "$folder/$1" "$2" || return 0
        [ ! -e "$folder/$1.old" ] && cp -p "$folder/$1" "$folder/$1.old" 2>/dev/null || fail "cannot write $folder/$1.old"
    fi
    say "$1: the file that was here, with another SHA-256, is now $folder/$1.old"
}
fetch_one() { # name, SHA-256
    [ ! -e "$folder/$1" ] || [ ! -e "$folder/$1.old" ] || is_sound "$folder/$1" "$2" ||
        fail "$folder/$1 has another SHA-256 than $title's, and $folder/$1.old exists: remove one of them, or give another folder"
    part=$folder/.$1.$$
    reasons=
    advice=
    # shellcheck disable=SC2086  # there are several
    for mirror in $mirrors; do
        say "$1: fetching from ${mirror%/}"
        fetch "${mirror%/}/$1" "$part"
        case $? in
        0)
            if is_sound "$part" "$2"; then
                keep_old "$1" "$2"
                mv -f "$part" "$folder/$1" 2>/dev/null || fail "cannot write $folder/$1"
                return
            fi
            reason='sent a file that is not the one expected (its SHA-256 differs: it was cut short, or is another one)'
            ;;
        1) [ "$reason" = 'does not have it' ] || advice='check the network, or ' ;;
        2) fail "cannot write $folder/$1: is the disk full?" ;;
        esac
        rm -f "$part"
        reasons="$reasons${reasons:+, }${mirror%/} $reason"
    done
    fail "could not get $1: $reasons; ${advice}give another --mirror"
}

above() { # folder
    case $1 in
    */*) echo "$1" | sed 's:/*[^/]*/*$::' ;;
    *) echo . ;;
    esac
}
missing=$folder
until [ -z "$missing" ] || [ -e "$missing" ]; do
    made=$((made + 1))
    missing=$(above "$missing")
done
[ -d "$folder" ] || [ ! -e "$folder" ] || fail "$folder exists and is not a folder: give another name"
mkdir -p "$folder" 2>/dev/null ||
    fail "cannot make the folder $folder: is the one above it writable?"
[ -w "$folder" ] || fail "cannot write into the folder $folder"
for file in $files; do
    sum=$(sum_of "$file")
    if is_sound "$folder/$file" "$sum"; then
        say "$file: is here"
    else
        fetch_one "$file" "$sum"
    fi
done
say "$title is in $folder"
end
