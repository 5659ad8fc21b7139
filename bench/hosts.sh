#!/bin/sh
# Runs a program on simulated hosts: network namespaces with host names of their own, joined by a switch, over which Open MPI uses TCP. At the end it
# prints how many bytes each host has sent. Needs root and iproute2.
#
#   bench/hosts.sh [--hosts N] [--ranks N] [--rate RATE] -- PROGRAM [ARGUMENT]...
#
#   --hosts N      number of hosts (2), which divide the cores
#   --ranks N      ranks on each host (1)
#   --rate RATE    limit of each host's link, in tc's units (1gbit, 200mbit); default: none
#
#   e.g. bench/hosts.sh --rate 1gbit -- build/hc_bench --ranks --device pocl
set -eu

hosts=2 ranks=1 rate=
while [ "${1:-}" != -- ]; do
    case "${1:-}" in
    --hosts) hosts=$2 ;;
    --ranks) ranks=$2 ;;
    --rate) rate=$2 ;;
    *) echo "hosts.sh: usage: bench/hosts.sh [--hosts N] [--ranks N] [--rate RATE] -- PROGRAM [ARGUMENT]..." >&2; exit 2 ;;
    esac
    shift 2
done
shift
[ "$(id -u)" -eq 0 ] || { echo "hosts.sh: needs root, for network namespaces" >&2; exit 1; }
for tool in ip mpirun unshare taskset; do
    command -v "$tool" >/dev/null || { echo "hosts.sh: $tool is missing" >&2; exit 1; }
done

cores=$(nproc)
work=$(mktemp -d)
name=hctrain-$$ switch=hctrain-$$-switch
all=$(seq 1 "$hosts")
# shellcheck disable=SC2317,SC2329  # trap calls it
clean() {
    for host in $all; do
        ip netns delete "$name-$host" 2>/dev/null || true
        rm -rf "/etc/netns/$name-$host"
    done
    ip netns delete "$switch" 2>/dev/null || true
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM

ip netns add "$switch"
ip -n "$switch" link add switch type bridge
ip -n "$switch" link set switch up
for host in $all; do
    ip netns add "$name-$host"
    mkdir -p "/etc/netns/$name-$host"
    { echo 127.0.0.1 localhost; for other in $all; do echo "10.77.0.$other $name-$other"; done; } >"/etc/netns/$name-$host/hosts"
    ip -n "$name-$host" link set lo up
    ip -n "$name-$host" link add wire type veth peer name "port$host" netns "$switch"
    ip -n "$name-$host" address add "10.77.0.$host/24" dev wire
    ip -n "$name-$host" link set wire up
    ip -n "$switch" link set "port$host" master switch up
    if [ -n "$rate" ]; then
        ip netns exec "$name-$host" tc qdisc add dev wire root tbf rate "$rate" burst 512kb latency 50ms
    fi
done

# The cores of host $1: its share, or one of them all where there are more hosts than cores.
cat >"$work/cores" <<CORES
each=\$(($cores / $hosts))
if [ \$each -gt 0 ]; then echo \$(((\$1 - 1) * each))-\$((\$1 * each - 1)); else echo \$(((\$1 - 1) % $cores)); fi
CORES
# What mpirun calls instead of ssh: agent HOST COMMAND...
cat >"$work/agent" <<AGENT
#!/bin/sh
host=\$1
shift
exec taskset -c \$(sh "$work/cores" \${host##*-}) ip netns exec \$host unshare --uts sh -c "hostname \$host; \$*"
AGENT
chmod 700 "$work/agent"
list=$(for host in $all; do printf '%s:%s,' "$name-$host" "$ranks"; done)

status=0
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    taskset -c "$(sh "$work/cores" 1)" ip netns exec "$name-1" unshare --uts sh -c "hostname $name-1"' && exec "$@"' sh \
    mpirun --mca plm_rsh_agent "$work/agent" --mca oob_tcp_if_include wire --mca btl_tcp_if_include wire \
    --mca btl tcp,self --mca pml ob1 --bind-to none --host "${list%,}" -np $((hosts * ranks)) "$@" || status=$?
for host in $all; do
    echo "host $host sent $(ip netns exec "$name-$host" cat /sys/class/net/wire/statistics/tx_bytes) bytes"
done
exit $status
