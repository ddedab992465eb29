#!/bin/sh
# SPDX-License-Identifier: MIT
# Compares the bytes that train says it has sent with what the interfaces of emulated hosts count, and prints TAP.
# usage: check_bytes.sh, from the top of the build tree (make check-cluster)
#
# Each case trains N steps and then 2 N. What both runs send alike (the start, evaluations, measurements) is not in the
# difference, which is compared with the difference of the log's figures. Interfaces count the headers of Ethernet, IP
# and TCP too: 66 bytes of each packet, with timestamps, are taken off. What the kernel hands to an interface as one
# segment of up to 64 KB it counts as one packet with one header. What TCP sends a second time (a busy host acknowledges
# late) is taken off, too. MPI's own headers stay in.
set -eu

tolerance=3 # percent
segment=1448 # bytes of TCP in a packet of 1500 bytes: 20 for IP, 20 for TCP and 12 for its timestamps are gone
train="bin/train --model mlp --batch 4 --seed 1 --quiet"

# ---- On a host: counts what its interface sends while a rank runs -----------------------------------

# Segments that TCP has sent a second time from this host.
sent_again() {
    awk '/^Tcp:/ { if (at) print $at; else for (i = 2; i <= NF; i++) if ($i == "RetransSegs") at = i }' /proc/net/snmp
}

if [ "${1:-}" = --count ]; then # FILE, command...
    file=$2.$OMPI_COMM_WORLD_RANK.$(hostname) device=/sys/class/net/eth0/statistics status=0
    shift 2
    read -r bytes <$device/tx_bytes
    read -r packets <$device/tx_packets
    again=$(sent_again)
    "$@" || status=$?
    read -r bytes_after <$device/tx_bytes
    read -r packets_after <$device/tx_packets
    again=$(($(sent_again) - again))
    echo "$((bytes_after - bytes - 66 * (packets_after - packets) - segment * again))" >"$file"
    exit $status
fi

# ---- On the head of the cluster: the cases ----------------------------------------------------------

here=$(cd "$(dirname "$0")" && pwd)

# The value of a field in the last of the JSON lines in a file.
field() { # name, file
    sed -n "s/.*\"$1\": *\"\\{0,1\\}\\([^,\"}]*\\).*/\\1/p" "$2" | tail -n 1
}

# Trains; the bytes of all interfaces are in $wire, those of the log in $sent and $between.
one_run() { # directory, hosts, ranks, steps, options
    rm -f "$1"/count.* "$1/log"
    # shellcheck disable=SC2086  # options are several words
    mpirun ${ISO_IALLREDUCE:+-x ISO_IALLREDUCE} -n "$3" sh "$0" --count "$1/count" $train --data "$1/data" --steps "$4" --log "$1/log" $5 >"$1/output" 2>&1 || return 1
    # Ranks of a host have all seen the same interface: the largest is that of the one that ran longest.
    wire=$(for host in $(seq "$2"); do cat "$1"/count.*.node"$host" | sort -n | tail -n 1; done |
        awk '{ sum += $1 } END { printf "%d", sum }')
    sent=$(field bytes_sent "$1/log")
    between=$(field bytes_between_nodes "$1/log")
}

case_of() { # directory, hosts, ranks, options
    name="$3 ranks on $2 hosts: ${ISO_IALLREDUCE:+ISO_IALLREDUCE=$ISO_IALLREDUCE }$4" steps=8 # N
    # These send so little that a message of mpirun's own shows.
    case $4 in *powersgd* | *localsgd*topk*) steps=24 ;; esac
    if ! { one_run "$1" "$2" "$3" $steps "$4" && wire_n=$wire sent_n=$sent between_n=$between &&
        one_run "$1" "$2" "$3" $((2 * steps)) "$4"; }; then
        echo "not ok - $name"
        sed 's/^/# /' "$1/output"
        return
    fi
    awk -v name="$name" -v wire=$((wire - wire_n)) -v sent=$((sent - sent_n)) -v between=$((between - between_n)) \
        -v alone="$([ "$2" = "$3" ] && echo 1 || echo 0)" -v most=$tolerance 'BEGIN {
            off = between > 0 ? 100 * (wire / between - 1) : 100
            well = off > -most && off < most && (alone ? sent == between : sent > between)
            printf "%s - %s\n# interfaces %.3f MB, log %.3f MB (%+.2f %%), with those inside hosts %.3f MB\n",
                well ? "ok" : "not ok", name, wire / 1e6, between / 1e6, off, sent / 1e6
        }'
}

if [ "${1:-}" = --head ]; then # directory, hosts
    for options in "--sync lazy" "--sync lazy --zero" "--sync lazy --wire bf16" "--sync lazy --wire f16" "--sync lazy --wire bf16-feedback" \
        "--sync lazy --wire int8" "--sync lazy --wire topk" "--sync lazy --wire powersgd --powersgd-start 2" \
        "--sync localsgd --period 4" "--sync daso --wire f32 --period 4 --wait 2" \
        "--sync daso --wire bf16 --period 4 --wait 2" "--sync daso --wire f16 --period 4 --wait 2" \
        "--sync daso --wire int8 --period 4 --wait 2" "--sync localsgd --wire int8 --period 4" \
        "--sync localsgd --wire int4 --period 4" "--sync localsgd --wire topk --period 4" \
        "--sync streaming-diloco --period 4" "--sync diloco --wire bf16 --period 4" \
        "--sync gossip" "--sync gossip --peers ring --wire int8" "--sync server --push sync --period 4"; do
        case_of "$2" "$3" "$3" "$options"
    done
    if [ "$3" = 2 ]; then # more than one rank on a host
        case_of "$2" 2 4 "--sync lazy"
        case_of "$2" 2 3 "--sync lazy"
        case_of "$2" 2 6 "--sync lazy" # in two levels no more cross than with 2 ranks
        case_of "$2" 2 4 "--sync lazy --wire topk"
        case_of "$2" 2 4 "--sync lazy --zero"
        case_of "$2" 2 4 "--sync lazy --zero --zero-scope node"
        case_of "$2" 2 4 "--sync lazy --zero-stage 3 --zero-scope node"
        case_of "$2" 2 4 "--sync daso --zero --wire bf16 --period 4 --wait 2"
        case_of "$2" 2 4 "--sync daso --wire bf16 --period 4 --wait 2"
        case_of "$2" 2 3 "--sync daso --wire int8 --period 4 --wait 2"
        case_of "$2" 2 4 "--sync localsgd --period 4" # likewise
        case_of "$2" 2 3 "--sync diloco --period 4"
    fi
    if [ "$3" = 3 ]; then # pairwise, directly and by halves
        (export ISO_IALLREDUCE=5 && case_of "$2" 3 3 "--sync lazy")
        (export ISO_IALLREDUCE=6 && case_of "$2" 3 3 "--sync lazy")
    fi
    exit
fi

# ---- Outside ---------------------------------------------------------------------------------------

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
sh "$here/with_cluster.sh" -n 2 -t 20 -- true 2>"$work/why" || status=$?
if [ "$status" = 77 ]; then
    echo "1..0 # SKIP $(sed 's/^with_cluster: //' "$work/why" | tail -n 1)"
    exit 0
fi
# So few images that the first epoch is the only one, also of the longest run.
. "$here/../idx_files.sh"
mkdir "$work/data"
for part in train t10k; do
    images 1024 28 >"$work/data/$part-images-idx3-ubyte"
    labels 1024 >"$work/data/$part-labels-idx1-ubyte"
done
echo "1..77"
for hosts in 2 3 4; do
    sh "$here/with_cluster.sh" -n $hosts -r none -t 450 -- sh "$0" --head "$work" $hosts
done
