#!/bin/sh
# SPDX-License-Identifier: MIT
# Lets get-mnist fetch from good and bad mirrors on this machine, and prints the results as TAP.
# usage: check_get_mnist.sh, in the build tree
set -u
export LC_ALL=C

get=$PWD/bin/get-mnist
tools='sh cat cut sed tr mkdir rmdir mv rm ln cp'
if ! python3 -c 'import http.server' 2>/dev/null; then
    echo "1..0 # SKIP python3, which plays the mirrors, is not here"
    exit 0
fi
unset ISO_MNIST_MIRROR http_proxy https_proxy HTTP_PROXY all_proxy ALL_PROXY
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
cd "$work" || exit 1
: >results

# ---- Mirrors ----

# Serves its folder on a free port. Of files below /cut it sends half of what it announces.
cat >serve.py <<'END'
import http.server, os

class Handler(http.server.SimpleHTTPRequestHandler):
    def copyfile(self, source, out):
        data = source.read()
        out.write(data[: len(data) // 2] if self.path.startswith("/cut/") else data)

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open("port.part", "w") as file:
    file.write(str(server.server_port))
os.rename("port.part", "port")
server.serve_forever()
END
mkdir good
for file in train-images-idx3 t10k-images-idx3 train-labels-idx1 t10k-labels-idx1; do
    head -c 40000 /dev/urandom >good/$file-ubyte.gz # get-mnist does not look inside
done
(cd good && sha256sum ./*.gz | sed 's:\./::') >sums
cp -r good cut
cp -r good damaged
# Eight bytes: a single random byte is that of the damage already in one of 256 runs.
printf damaged! | dd of=damaged/t10k-images-idx3-ubyte.gz bs=1 seek=100 conv=notrunc 2>/dev/null
cp -r good truncated
head -c 500 good/train-images-idx3-ubyte.gz >truncated/train-images-idx3-ubyte.gz
cp -r good lacking
rm lacking/t10k-images-idx3-ubyte.gz
python3 serve.py >requests 2>&1 </dev/null &
server=$!
tries=0
until [ -e port ] || [ $tries -ge 100 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
url=http://127.0.0.1:$(cat port)
nobody=http://127.0.0.1:1 # no port that anything listens on

# ---- Helpers ----

result() { # 0 for good, what should hold
    echo "$2" >>results
    if [ "$1" = 0 ]; then
        echo "ok - $2"
    else
        echo "not ok - $2"
        sed 's/^/# /' stdout stderr
    fi
}
run() { # arguments... ; $path has the commands that there are, $limit may be a command that limits
    status=0
    # shellcheck disable=SC2086  # limit is several words
    timeout -k 5 30 $limit env PATH="$path" "$get" "$@" >stdout 2>stderr </dev/null || status=$?
}
whole() { # folder: has the four files and nothing else
    [ "$(ls -A "$1")" = "$(ls good)" ] && (cd "$1" && sha256sum -c ../sums >/dev/null 2>&1)
}
# Refused with one sentence; of the folder "new" only whole files are left, and it only if it has any.
refused() { # what is wrong, pattern of the sentence, arguments...
    name=$1
    sentence=$2
    shift 2
    run "$@"
    good=0
    [ "$status" != 0 ] && [ "$status" != 124 ] || good=1
    [ "$(wc -l <stderr)" = 1 ] && grep -qE "^get-mnist: .*$sentence" stderr || good=1
    if [ -d new ]; then
        ls -A new >left
        [ -s left ] || good=1 # an empty folder
        while read -r file; do
            cmp -s "new/$file" "good/$file" || good=1
        done <left
    fi
    rm -rf new
    result $good "refused with one sentence${with:-}: $name"
}
# A PATH with these commands alone.
only() { # folder, commands...
    mkdir "$1"
    bin=$1
    shift
    for tool in "$@"; do
        ln -s "$(command -v "$tool")" "$bin/$tool"
    done
}

# ---- Fetching, with each tool that is here ----

limit=
# A file may have 10 KiB. Writing more fails, as on a full disk.
echo 'trap "" XFSZ; ulimit -f 20; exec "$@"' >limited.sh
for tool in curl wget; do
    if ! command -v $tool >/dev/null; then
        echo "ok - fetches with $tool # SKIP it is not here" | tee -a results
        continue
    fi
    # shellcheck disable=SC2086  # there are several
    only with-$tool $tools sha256sum $tool
    path=$work/with-$tool
    with=" ($tool)"

    run --sums sums --mirror "$url/good" new
    [ "$status" = 0 ] && whole new && [ ! -s stderr ] && [ "$(grep -c fetching stdout)" = 4 ]
    result $? "fetches the four files$with"
    : >requests
    run --sums sums --mirror "$nobody" new
    [ "$status" = 0 ] && whole new && [ ! -s requests ] && [ "$(grep -c 'is here' stdout)" = 4 ]
    result $? "fetches nothing again$with"
    cp damaged/t10k-images-idx3-ubyte.gz new
    rm new/train-labels-idx1-ubyte.gz
    run --sums sums --mirror "$url/good/" new
    old=new/t10k-images-idx3-ubyte.gz.old
    [ "$status" = 0 ] && [ "$(grep -c fetching stdout)" = 2 ] && cmp -s damaged/t10k-images-idx3-ubyte.gz $old &&
        grep -q "^t10k-images-idx3-ubyte.gz: the file that was here, with another SHA-256, is now $old$" stdout
    good=$?
    cp $old new/t10k-images-idx3-ubyte.gz
    run --sums sums --mirror "$url/good/" new
    [ "$status" = 1 ] && cmp -s $old new/t10k-images-idx3-ubyte.gz &&
        grep -q "^get-mnist: new/t10k-images.* has another SHA-256 .* and $old exists: remove one of them, or give another folder$" stderr ||
        good=1
    rm $old
    run --sums sums --mirror "$url/good/" new
    rm $old
    [ "$status" = 0 ] && whole new || good=1
    result $good "fetches what is damaged or missing, and keeps what was there$with"
    rm -rf new

    run --sums sums --mirror "$nobody" --mirror "$url/lacking" --mirror "$url/damaged" \
        --mirror "$url/good" new
    [ "$status" = 0 ] && whole new
    result $? "tries one mirror after the other$with"
    rm -rf new
    export ISO_MNIST_MIRROR="$nobody $url/good"
    run --sums sums new
    [ "$status" = 0 ] && whole new
    result $? "takes mirrors from the environment$with"
    rm -rf new
    run --sums sums --mirror "$url/good" new
    [ "$status" = 0 ] && whole new && ! grep -q "$nobody" stdout
    result $? "prefers the mirrors of the command line$with"
    rm -rf new
    unset ISO_MNIST_MIRROR

    refused "a server that is not there" "$nobody cannot be reached; check the network, or" --sums sums --mirror "$nobody" new
    refused "a file that is not there" 't10k-images.*/lacking does not have it' --sums sums \
        --mirror "$url/lacking" new
    refused "a damaged file" 't10k-images.*/damaged sent a file that is not the one expected .*\); give another --mirror$' --sums sums \
        --mirror "$url/damaged" new
    refused "a file that is too short" 'train-images.*/truncated sent a file that is not .*cut short.*\); give another --mirror$' \
        --sums sums --mirror "$url/truncated" new
    refused "a connection that is cut" '/cut (broke off|cannot be reached|failed)' --sums sums --mirror "$url/cut" new
    refused "bad mirrors of all kinds" 'lacking does not.*, .*damaged sent a file .*\); give another --mirror$' --sums sums \
        --mirror "$url/lacking" --mirror "$url/damaged" new
    refused "files that are not MNIST's" 'train-images.* not the one expected' --mirror "$url/good" new
    refused "files that are not Fashion-MNIST's" 'train-images.* not the one expected' --fashion \
        --mirror "$url/good" new

    limit='sh ./limited.sh'
    refused "a full disk" 'cannot write new/train-images.*disk full' --sums sums \
        --mirror "$url/good" --mirror "$url/good" new
    limit=
done

# ---- What needs no mirror ----

with=
# shellcheck disable=SC2086
only with-none $tools sha256sum
path=$work/with-none
refused "neither curl nor wget" 'neither curl nor wget' --sums sums --mirror "$url/good" new
# shellcheck disable=SC2086
only unchecked $tools "$(command -v curl >/dev/null && echo curl || echo wget)"
path=$work/unchecked
refused "nothing that makes checksums" 'none of sha256sum' --sums sums --mirror "$url/good" new
path=$PATH
is_unreached() { [ "$status" != 0 ] && grep -q "$nobody cannot be reached" stderr; }
run --sums sums --mirror "$nobody" deep/er//new/
is_unreached && [ ! -e deep ]
result $? "the folders above it that were made go, too"
mkdir deep
run --sums sums --mirror "$nobody" deep/er/new
is_unreached && [ -d deep ] && [ ! -e deep/er ]
result $? "a folder that was there stays"
mkdir deep/new
echo own >deep/new/notes
run --sums sums --mirror "$nobody" deep/new
is_unreached && [ "$(cat deep/new/notes)" = own ]
good=$?
rm deep/new/notes
run --sums sums --mirror "$nobody" deep/new
[ "$good" = 0 ] && is_unreached && [ -d deep/new ]
result $? "what was in it stays, and itself when it was empty"
rm -rf deep

# A mirror of a second get-mnist, which has fetched the same file when the first one has it, too.
mkdir rival hidden
cat >rival/curl <<'END'
#!/bin/sh
while [ $# -gt 2 ]; do shift; done
cp "good/${2##*/}" "$1"
[ ! -e rival/on ] || cp "good/${2##*/}" new
END
cat >hidden/mv <<END
#!/bin/sh
for name; do :; done
[ -e "\$name" ] || echo "\$name" >>gone
exec $(command -v mv) "\$@"
END
printf '#!/bin/sh\nexit 1\n' >hidden/ln
chmod +x rival/curl hidden/mv hidden/ln
rm -rf new gone
cp -r damaged new
: >rival/on
path=$work/rival:$PATH
run --sums sums --mirror http://rival new
[ "$status" = 0 ] && whole new && ! grep 'is now' stdout
result $? "what another get-mnist has fetched meanwhile is not called old"
rm rival/on
good=0
for _ in without with; do
    rm -rf new gone
    cp -r damaged new
    path=$work/rival:$work/hidden:$PATH
    run --sums sums --mirror http://rival new
    [ "$status" = 0 ] && [ ! -e gone ] && cmp -s damaged/t10k-images-idx3-ubyte.gz new/t10k-images-idx3-ubyte.gz.old || good=1
    rm -f hidden/ln
done
rm -rf new
path=$PATH
result $good "a file has its name all the time, with and without hard links"

refused "no folder" 'give the folder'
refused "two folders" 'not also two' one two
refused "an unknown option" 'unknown option --digits' --digits new
refused "an option without its value" '--mirror needs a value' new --mirror
refused "a file in place of the folder" 'sums exists and is not a folder' --mirror "$url/good" sums
refused "checksums that are not there" 'cannot read the checksums nowhere' --sums nowhere new
head -n 3 sums >fewer
refused "checksums of fewer files" 'fewer has no SHA-256 of' --sums fewer --mirror "$url/good" new
run --help
[ "$status" = 0 ] && grep -q '^  --mirror ' stdout && [ ! -s stderr ]
result $? "--help tells of the options"

if [ -c /dev/full ]; then
    good=0
    for arguments in --help --version "--sums sums --mirror $url/good new"; do
        status=0
        # shellcheck disable=SC2086  # several words
        "$get" $arguments >/dev/full 2>stderr || status=$?
        [ "$status" = 1 ] && [ "$(cat stderr)" = "get-mnist: cannot write to standard output: is the disk full?" ] || good=1
    done
    whole new || good=1
    result $good "a full disk for the output is told of when all is done"
    rm -rf new
fi

echo "1..$(wc -l <results)"
