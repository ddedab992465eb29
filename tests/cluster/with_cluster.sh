#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs a command on an emulated cluster: hosts of their own name and network, joined by links of limited rate.
# In the command, mpirun starts ranks on those hosts, one after the other (host 1, 2, ..., 1, 2, ...), unbound.
# usage: with_cluster.sh [-n HOSTS (2)] [-r RATE (1gbit)] [-t SECONDS (600)] -- COMMAND [ARGUMENT...]
#        RATE as tc(8) writes it, "none": unlimited. The exit status is the command's; 77: this machine cannot.
#
# Each host is a network namespace. All of it, the bridge between them and every process too, lives in namespaces that
# belong to one process (mount, pid, net), so that it is invisible outside, any number of clusters can run at once,
# and nothing remains when that process ends, which it does with this script, however this ends.
set -eu

net=10.77.0 # seen by nobody outside

cannot() { # reason
    echo "with_cluster: $1" >&2
    exit 77
}

# ---- Inside: first process of its namespaces -------------------------------------------------------

add_host() { # number
    ip netns add "node$1"
    ip link add "port$1" type veth peer name eth0 netns "node$1"
    ip link set "port$1" master bridge up
    ip -n "node$1" address add "$net.$1/24" dev eth0
    ip -n "node$1" link set eth0 up
    ip -n "node$1" link set lo up
    # The burst holds a whole 64 KB segment: with less the kernel cuts segments on the cores that compute.
    if [ "$rate" != none ]; then
        tc -n "node$1" qdisc add dev eth0 root tbf rate "$rate" burst 80kb latency 50ms
    fi
    echo "$net.$1 node$1" >>/run/hosts
    echo "node$1 slots=64" >>/run/hostfile
}

put_up() {
    # Private places for what ip and Open MPI keep in files, which go away with the namespaces.
    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs /dev/shm
    mkdir /run/netns /run/ompi
    hostname head
    ip link set lo up
    ip link add bridge type bridge
    ip address add "$net.254/24" dev bridge
    ip link set bridge up
    echo "127.0.0.1 localhost" >/run/hosts
    echo "$net.254 head" >>/run/hosts
    host=1
    while [ "$host" -le "$hosts" ]; do
        add_host "$host"
        host=$((host + 1))
    done
    mount --bind /run/hosts /etc/hosts
    cat >/run/agent <<'END'
#!/bin/sh
# Takes the place of ssh: agent HOST COMMAND...
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
END
    chmod +x /run/agent
}

# What the options of mpirun would say.
set_mpi() {
    export OMPI_MCA_plm_rsh_agent=/run/agent OMPI_MCA_plm_rsh_no_tree_spawn=1
    export OMPI_MCA_orte_default_hostfile=/run/hostfile OMPI_MCA_orte_tmpdir_base=/run/ompi
    export OMPI_MCA_oob_tcp_if_include="$net.0/24" OMPI_MCA_btl_tcp_if_include="$net.0/24"
    export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp
    export OMPI_MCA_rmaps_base_mapping_policy=node OMPI_MCA_hwloc_base_binding_policy=none
}

if [ "${1:-}" = --inside ]; then
    hosts=$2 rate=$3 limit=$4
    shift 4
    trap 'exit 143' INT TERM HUP
    trap 'cannot "the network could not be set up"' EXIT # what failed has said why
    put_up
    trap - EXIT
    set_mpi
    timeout -k 5 "$limit" "$@" &
    wait $!
    exit
fi

# ---- Outside ---------------------------------------------------------------------------------------

usage() {
    sed -n 's/^# usage: /usage: /p' "$0" >&2
    exit 2
}

hosts=2 rate=1gbit limit=600
while getopts n:r:t: option; do
    case $option in
    n) hosts=$OPTARG ;;
    r) rate=$OPTARG ;;
    t) limit=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] && [ "$hosts" -ge 1 ] && [ "$hosts" -le 200 ] || usage

root=$(cd "$(dirname "$0")/../.." && pwd)
. "$root/tests/test_env.sh"
# As on hosts with cores of their own. A rank whose progress thread yields gives its core to the kernels for milliseconds.
export OMPI_MCA_mpi_yield_when_idle=0
PATH=$PATH:/usr/sbin:/sbin
[ "$(id -u)" = 0 ] || cannot "needs root to make network namespaces"
for tool in ip tc setpriv unshare mpirun; do
    command -v "$tool" >/dev/null || cannot "needs the command $tool"
done
in_namespaces() { # command
    exec setpriv --pdeathsig KILL unshare --net --uts --ipc --mount --pid --fork --mount-proc --kill-child "$@"
}
(in_namespaces true) 2>/dev/null || cannot "this machine does not allow namespaces of network, mounts and processes"

in_namespaces sh "$0" --inside "$hosts" "$rate" "$limit" "$@" &
first=$!
trap 'kill -KILL $first 2>/dev/null; exit 143' INT TERM HUP
wait "$first"
