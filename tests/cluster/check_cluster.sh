#!/bin/sh
# SPDX-License-Identifier: MIT
# Checks Isotherm on several emulated hosts with links of 1 Gbit/s, and prints a TAP result for each property.
# usage: check_cluster.sh, from the top of the build tree (make check-cluster)
set -eu

unset LD_PRELOAD # it measures times, in which ranks wait as they do for users
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
train="bin/train --data digits --model mlp --seed 1 --quiet"

status=0
sh "$here/with_cluster.sh" -n 2 -t 20 -- true 2>"$work/why" || status=$?
if [ "$status" = 77 ]; then
    echo "1..0 # SKIP $(sed 's/^with_cluster: //' "$work/why" | tail -n 1)"
    exit 0
fi

# Runs a command on a number of hosts; what it printed is in $work/output.
cluster() { # hosts, command...
    hosts=$1
    shift
    sh "$here/with_cluster.sh" -n "$hosts" -t 90 -- "$@" >"$work/output" 2>&1
}
# Prints a result; the condition is a command. What the cluster printed last is shown if it does not hold.
result() { # what should hold, condition...
    name=$1
    shift
    if "$@"; then
        echo "ok - $name"
    else
        echo "not ok - $name"
        sed 's/^/# /' "$work/output"
    fi
}
# The value of a field in the last of the JSON lines in a file.
field() { # name, file
    sed -n "s/.*\"$1\": *\"\\{0,1\\}\\([^,\"}]*\\).*/\\1/p" "$2" | tail -n 1
}

# Open MPI may warn between the names, so only the names count.
hosts_differ() {
    cluster 3 mpirun -n 3 hostname || return 1
    [ "$(grep -x 'node[0-9]*' "$work/output" | sort | tr '\n' ' ')" = "node1 node2 node3 " ]
}

# The best of several exchanges is no faster than the wire, and no slower than what others on this machine explain.
rate_holds() {
    cluster 2 mpirun -n 2 tests/bench/bench_exchange --rate 1 --repeats 15 || return 1
    awk -v took="$(field min_ms "$work/output")" -v wire="$(field wire_ms "$work/output")" \
        'BEGIN { exit !(took >= 0.9 * wire && took <= 1.3 * wire) }'
}

groups_are_hosts() { # hosts, ranks, ranks of each host
    expected=
    for count in $3; do
        expected="$expected $count"
    done
    cluster "$1" mpirun -n "$2" tests/cluster/node_groups || return 1
    [ "$(sed -n 's/^node .* of '"$1"': \(.*\) ranks$/ \1/p' "$work/output" | tr -d '\n')" = "$expected" ]
}

# Trains on one rank a host; the hash of the parameters afterwards is in $work/MODE.
train_hash() { # hosts, lazy or blocking
    cluster "$1" mpirun -n "$1" $train --steps 30 --sync "$2" --overwrite --log "$work/log" || return 1
    field param_hash "$work/log" >"$work/$2"
    [ -s "$work/$2" ]
}
lazy_is_blocking() { # hosts
    train_hash "$1" lazy && train_hash "$1" blocking && cmp -s "$work/lazy" "$work/blocking"
}

# An exchange of parameters takes most of a second here, and all of it is on the clock of the training, whoever waits
# for it: with evaluations a run is no faster, and ends with the same bits.
slow_run() { # log, options...
    log=$1
    shift
    sh "$here/with_cluster.sh" -n 2 -r 20mbit -t 90 -- mpirun -n 2 $train --sync daso --period 4 --wait 4 --steps 28 \
        --warmup-steps 0 --cooldown-steps 0 --log "$log" "$@" >"$work/output" 2>&1
}
evaluation_hides_nothing() {
    slow_run "$work/plain" && slow_run "$work/tested" --eval-every 4 || return 1
    grep '"event":"summary"' "$work/plain" "$work/tested" >"$work/output"
    [ "$(field param_hash "$work/plain")" = "$(field param_hash "$work/tested")" ] &&
        awk -v plain="$(field seconds "$work/plain")" -v tested="$(field seconds "$work/tested")" \
            'BEGIN { exit !(plain > 1 && tested > 0.7 * plain) }'
}

# The wait for the gradients of the only step of the warm-up is no part of the steps that follow.
step_takes_time() {
    sh "$here/with_cluster.sh" -n 2 -r 100mbit -t 90 -- mpirun -n 2 bin/train --model mlp --batch 16 --seed 1 --steps 30 \
        --sync daso --warmup-steps 1 >"$work/output" 2>&1 && grep -q 'was measured to take .* ms, a step [0-9.]*[1-9]' "$work/output"
}

# The rank on the second host is killed while both train.
dead_rank_ends_job() {
    cluster 2 sh "$here/kill_rank.sh" "$work" mpirun -n 2 sh -c \
        'echo $$ >"$0/pid.$OMPI_COMM_WORLD_RANK"; exec "$@"' "$work" $train --steps 1000000 --overwrite --log "$work/log"
}

# A rank of the third host is stopped, or the host is cut off, while all train.
host_is_named() { # stop, cut or loss
    cluster 3 sh "$here/stall_host.sh" "$1" "$work" mpirun -n 6 sh -c \
        'echo $$ >"$0/pid.$OMPI_COMM_WORLD_RANK"; exec "$@"' "$work" $train --epochs 1000000 --threads 1 --overwrite \
        --eval-every 20 --test-limit 50 --log "$work/log"
}

# mpirun waits for a host that is cut off; ranks on its own host end it, if asked to.
launcher_ends() { # seconds of ISO_WATCHDOG
    cluster 1 sh "$here/end_launcher.sh" "$1" "$work" $train --epochs 1000000 --threads 1 --overwrite --eval-every 20 \
        --test-limit 50 --log "$work/log"
}

# elastic ends an mpirun that waits for a host that is cut off, and starts again on the others.
run_goes_on() {
    cluster 3 sh "$here/lose_host.sh" "$work" $train --epochs 1000000 --threads 1 --eval-every 20 --test-limit 50
}

echo "1..15"
result "ranks run on hosts of their own" hosts_differ
result "a link takes 0.9 to 1.3 of the time that its rate says" rate_holds
result "node groups are the hosts: 4 ranks on 2 hosts" groups_are_hosts 2 4 "2 2"
result "node groups are the hosts: 4 ranks on 3 hosts" groups_are_hosts 3 4 "2 1 1"
result "lazy gives the bits of blocking on 2 hosts" lazy_is_blocking 2
result "lazy gives the bits of blocking on 3 hosts" lazy_is_blocking 3
result "evaluations make the training no faster on a slow link" evaluation_hides_nothing
result "the step time that daso measures after one step of warm-up is positive" step_takes_time
result "a rank that dies on one host ends the job within 10 s" dead_rank_ends_job
result "a rank that is stopped on another host is named" host_is_named stop
result "a host whose link is down is named" host_is_named cut
result "a host from which all packets are lost is named" host_is_named loss
result "a message says how to end mpirun, which waits for a host that is cut off" launcher_ends 0
result "the watchdog ends mpirun, which waits for a host that is cut off" launcher_ends 3
result "a run goes on without a host that is cut off" run_goes_on
