#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs bench_scale on a simulated cluster (SimGrid): full-duplex links of one rate into a switch that never limits.
# usage: simulate.sh [-b BUILD (.)] [-n HOSTS (2)] [-p RANKS PER HOST (1)] [-r MBIT/S (1000)] [-m BYTES] -- [OPTION...]
#        BUILD: the folder of build_scale.sh. Arrays of BYTES or more get no memory of their own (with --device
#        model:FILE alone). The options are bench_scale's. The costs are those of the file costs, or SCALE_COSTS.
# shellcheck disable=SC2154  # the costs
set -eu

here=$(cd "$(dirname "$0")" && pwd)
usage() {
    sed -n '/^# usage: /,/^#        model:/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
build=. hosts=2 ranks=1 rate=1000 shared=0
while getopts b:n:p:r:m: option; do
    case $option in
    b) build=$OPTARG ;;
    n) hosts=$OPTARG ;;
    p) ranks=$OPTARG ;;
    r) rate=$OPTARG ;;
    m) shared=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
refuse() { # why
    echo "simulate.sh: $1" >&2
    exit 1
}
for number in "$hosts" "$ranks" "$rate"; do
    case $number in
    *[!0-9]* | '' | 0* | ????????*) refuse "$number is no number from 1 to 9999999" ;;
    esac
done
[ $((hosts * ranks)) -le 16384 ] || refuse "$hosts hosts of $ranks ranks are more than 16384 ranks"
case $shared in *[!0-9]* | '') refuse "-m $shared is no number of bytes" ;; esac
command -v smpirun >/dev/null || {
    echo "simulate.sh: needs smpirun (Debian: apt-get install libsimgrid-dev)" >&2
    exit 77
}
[ -x "$build/bench_scale_simulated" ] ||
    refuse "there is no bench_scale_simulated in $build: run build_scale.sh $build"
# shellcheck source=tests/scale/costs disable=SC2154
. "${SCALE_COSTS:-$here/costs}"
for cost in payload latency_us poll_us byte_ns sum_ns wake_ns node_mbyte node_latency_us; do
    eval "number=\${$cost:-}"
    case $number in
    '' | . | *[!0-9.]* | *.*.*) refuse "the cost $cost is \"$number\", which is no number: see ${SCALE_COSTS:-$here/costs}" ;;
    esac
done
work=$(mktemp -d)
case $work in
*' '*)
    rm -rf "$work"
    refuse "the folder of temporary files has a space in its name, which SimGrid cannot pass on: set TMPDIR to another"
    ;;
esac
child=
trap 'rm -rf "$work"' EXIT
trap '[ -z "$child" ] || pkill -P "$child" || kill "$child"; exit 143' INT TERM HUP # a shell waits for what is not in the background

# SMPI's own messages, with which it makes communicators, pass these links; all others are those of smpi_network.c.
bytes=$(awk -v rate="$rate" -v payload="$payload" 'BEGIN { printf "%.0f", rate * 1e6 / 8 * payload }')
half=$(awk -v us="$latency_us" 'BEGIN { print us / 2 }')
cat >"$work/platform.xml" <<END
<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="cluster" prefix="host" suffix="" radical="0-$((hosts - 1))" speed="1Gf" bw="${bytes}Bps" lat="${half}us"
           sharing_policy="SPLITDUPLEX" loopback_bw="${node_mbyte}MBps" loopback_lat="${node_latency_us}us"/>
</platform>
END
awk -v hosts="$hosts" -v ranks="$ranks" \
    'BEGIN { for (h = 0; h < hosts; h++) for (r = 0; r < ranks; r++) print "host" h }' >"$work/hosts"

export ISO_TEST_SIM_POLL_US="$poll_us" ISO_TEST_SIM_BYTE_NS="$byte_ns" ISO_TEST_SIM_SUM_NS="$sum_ns"
export ISO_TEST_SIM_WAKE_NS="$wake_ns" ISO_TEST_SIM_SHARED="$shared" ISO_TEST_SIM_EACH="$ranks"
export ISO_TEST_SIM_RATE="$bytes" ISO_TEST_SIM_LATENCY_US="$latency_us"
export ISO_TEST_SIM_NODE_RATE="${node_mbyte}e6" ISO_TEST_SIM_NODE_LATENCY_US="$node_latency_us"
# Shared memory of a node waits without calling MPI, so time would stand still; nor is there anyone to watch.
export ISO_NODE_COLLECTIVE=mpi ISO_STALL_WARN=0
smpirun -np $((hosts * ranks)) -platform "$work/platform.xml" -hostfile "$work/hosts" \
    --cfg=smpi/simulate-computation:no --cfg=smpi/host-speed:1 --cfg=smpi/display-timing:no --cfg=smpi/test:0 \
    --cfg=smpi/iprobe:0 --cfg=smpi/os:0:0:0 --cfg=smpi/or:0:0:0 --cfg=smpi/bw-factor:0:1 --cfg=smpi/lat-factor:0:1 \
    --cfg=network/crosstraffic:no --log=root.thres:critical "$build/bench_scale_simulated" "$@" </dev/null >"$work/line" \
    2>"$work/errors" &
child=$!
status=0
wait "$child" || status=$?
# When a rank has ended with an error, the others still wait for it, which SimGrid calls a deadlock.
if grep -q '^error: ' "$work/errors"; then
    grep -v 'ker_engine/CRITICAL' "$work/errors" >&2 || true
else
    cat "$work/errors" >&2
fi
[ "$status" = 0 ] || exit "$status"
# smpirun returns 0 after some errors.
[ -s "$work/line" ] || refuse "the simulation has printed no result"
cat "$work/line"
