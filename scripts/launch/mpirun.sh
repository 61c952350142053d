#!/bin/bash
# The trainer's ranks by Open MPI, over the hosts of a machine file or on this one. Open MPI starts processes and says which
# rank each is; their bytes go over clime's own links.
#   scripts/launch/mpirun.sh RANKS [-H host:slots,...] -- --run R --hf-checkpoint M --router-url URL ...
# MASTER_ADDR (default: this host) is where the others reach rank 0, which mpirun puts first.
set -eu
[ $# -ge 2 ] || { sed -n '2,5s/^# *//p' "$0" >&2; exit 2; }
ranks=$1
shift
words=()
while [ "${1:---}" != -- ]; do words+=("$1"); shift; done
[ $# -eq 0 ] || shift
root=$(cd "$(dirname "$0")/../.." && pwd)
export MASTER_ADDR=${MASTER_ADDR:-$(hostname)} MASTER_PORT=${MASTER_PORT:-29500}
exec mpirun -np "$ranks" "${words[@]}" --bind-to none -x MASTER_ADDR -x MASTER_PORT \
    "${CLIME_TRAIN:-$root/build/clime-train}" rl --actor-num-gpus-per-node "$ranks" "$@"
