#!/usr/bin/env bash
# Training across three Ray nodes with addresses of their own on one machine (network namespaces joined by a bridge; needs
# root): the node with the actors is killed in mid-run, another is added, the return must still be reached.
#   sudo PATH=$PWD/.venv/bin:$PATH tests/runtime/three_nodes.sh
set -euo pipefail
work=$(mktemp -d)
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token

clean() {
    for name in a b c; do
        for pid in $(ip netns pids "th-$name" 2>/dev/null); do kill -9 "$pid" || true; done
        ip netns del "th-$name" 2>/dev/null || true
    done
    ip link del th-bridge 2>/dev/null || true
    rm -rf "$work"
}
trap clean EXIT

node() { # name, address, CPUs, more
    ip netns exec "th-$1" ray start --node-ip-address "$2" --num-cpus "$3" --object-store-memory 300000000 \
        --disable-usage-stats "${@:4}" >"$work/$1.txt" 2>&1 || { cat "$work/$1.txt"; exit 1; }
}

ip link add th-bridge type bridge
ip link set th-bridge up
number=1
for name in a b c; do
    ip netns add "th-$name"
    ip link add "th-$name" type veth peer name eth0 netns "th-$name"
    ip link set "th-$name" master th-bridge up
    ip -n "th-$name" addr add "10.77.0.$number/24" dev eth0
    ip -n "th-$name" link set eth0 up
    ip -n "th-$name" link set lo up
    number=$((number + 1))
done
node a 10.77.0.1 1 --head --port 6379 --include-dashboard=false --temp-dir "$work/ray"
node b 10.77.0.2 2 --address 10.77.0.1:6379

ip netns exec th-a thespis train impala --env CartPole-v1 --on ray --ray-address 10.77.0.1:6379 --run-dir "$work/run" \
    --actors 2 --actors-per-node 2 --stop-at-return 475 --total-steps 4000000 --optimizer.learning-rate 1e-3 &
run=$!
until grep -qs lag "$work/run/metrics.jsonl"; do sleep 0.2; done
sleep 1
echo "--- killing the node of the actors"
for pid in $(ip netns pids th-b); do kill -9 "$pid" || true; done
sleep 5
echo "--- adding another"
node c 10.77.0.3 2 --address 10.77.0.1:6379
wait "$run"
python - "$work/run/summary.json" <<'CHECK'
import json, sys

summary = json.load(open(sys.argv[1]))
print({key: summary[key] for key in ("exit_reason", "env_steps", "restarts", "dropped", "nodes")})
assert summary["exit_reason"] == "return_reached" and summary["restarts"] == 2
assert summary["dropped"] == {"partial_unrolls": 2} and summary["nodes"]["actor 0"] == "10.77.0.3"
CHECK
