#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One node's part of a torchrun job under spotwatch.
#
#   bash torchrun-node.sh train_ranks.py --url s3://bucket/checkpoints --run-id sweep-01
#   NODES=2 NODE=0 HEAD=10.0.0.5 bash torchrun-node.sh train_ranks.py ...     # on 10.0.0.5
#   NODES=2 NODE=1 HEAD=10.0.0.5 bash torchrun-node.sh train_ranks.py ...     # on the other
#
# RANKS: how many on this node (auto: one a GPU, else one a core). ATTEMPT: the same on all nodes of one start,
# another at the next, so that a straggler of the last start cannot join this one.
set -eu

hosts_the_store=$([ "${NODE:-0}" = 0 ] && echo true || echo false)
exec spotwatch exec -- torchrun \
    --nnodes "${NODES:-1}" --nproc-per-node "${RANKS:-auto}" \
    --rdzv-backend c10d --rdzv-endpoint "${HEAD:-127.0.0.1}:${PORT:-29500}" --rdzv-id "${ATTEMPT:-1}" \
    --rdzv-conf "is_host=$hosts_the_store" \
    --max-restarts 0 \
    --shutdown-timeout "${SAVE_SECONDS:-120}" \
    "$@"
