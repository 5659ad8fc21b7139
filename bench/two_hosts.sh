#!/bin/sh
# Runs a program on two simulated hosts, one rank and half of the cores on each: two network namespaces with host names of
# their own and a wire between them, over which Open MPI starts its daemon and talks TCP. Needs root, and iproute2.
#
#   bench/two_hosts.sh [RATE] -- PROGRAM [ARGUMENT]...      e.g. bench/two_hosts.sh 1gbit -- build/hc_bench --ranks
#
# RATE is what tc takes (1gbit, 200mbit); without it the wire is as fast as the machine.
set -eu

rate=
if [ "${1:-}" != -- ]; then
    rate=${1:?usage: bench/two_hosts.sh [RATE] -- PROGRAM [ARGUMENT]...}
    shift
fi
[ "${1:-}" = -- ] || { echo "two_hosts.sh: -- is missing before the program" >&2; exit 2; }
shift
[ "$(id -u)" -eq 0 ] || { echo "two_hosts.sh: needs root, for network namespaces" >&2; exit 1; }
for tool in ip mpirun unshare taskset; do
    command -v "$tool" >/dev/null || { echo "two_hosts.sh: $tool is missing" >&2; exit 1; }
done

cores=$(nproc)
half=$((cores / 2))
[ "$half" -gt 0 ] || { echo "two_hosts.sh: needs two cores, one for each host" >&2; exit 1; }
work=$(mktemp -d)
a=hctrain-a-$$ b=hctrain-b-$$
clean() {
    ip netns delete $a 2>/dev/null || true
    ip netns delete $b 2>/dev/null || true
    rm -rf "$work" /etc/netns/$a /etc/netns/$b
}
trap clean EXIT
trap 'exit 130' INT TERM

for name in $a $b; do
    ip netns add $name
    mkdir -p /etc/netns/$name
    printf '127.0.0.1 localhost\n10.77.0.1 %s\n10.77.0.2 %s\n' $a $b >/etc/netns/$name/hosts
    ip -n $name link set lo up
done
ip -n $a link add wire type veth peer name wire netns $b
ip -n $a address add 10.77.0.1/24 dev wire
ip -n $b address add 10.77.0.2/24 dev wire
for name in $a $b; do
    ip -n $name link set wire up
    if [ -n "$rate" ]; then
        ip netns exec $name tc qdisc add dev wire root tbf rate "$rate" burst 512kb latency 50ms
    fi
done

# What mpirun calls instead of ssh: agent HOST COMMAND...
cat >"$work/agent" <<AGENT
#!/bin/sh
shift
exec taskset -c $half-$((cores - 1)) ip netns exec $b unshare --uts sh -c "hostname $b; \$*"
AGENT
chmod 700 "$work/agent"

OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    taskset -c 0-$((half - 1)) ip netns exec $a unshare --uts sh -c "hostname $a"' && exec "$@"' sh \
    mpirun --mca plm_rsh_agent "$work/agent" --mca oob_tcp_if_include wire --mca btl_tcp_if_include wire \
    --mca btl tcp,self --mca pml ob1 --bind-to none --host $a:1,$b:1 -np 2 "$@"
