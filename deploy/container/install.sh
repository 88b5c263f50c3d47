#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fills /opt/spotwatch for the image `$1` (daemon or full); run by the Dockerfile. Wheels only, so that no compiler
# is needed on any platform; dkimpy has none, and is plain Python.
set -eu
pip() { python -m pip --python /opt/spotwatch/bin/python install --quiet --no-compile "$@"; }

python deploy/container/requirements.py "$1" > requirements.txt
pip --only-binary=:all: --no-binary=dkimpy --constraint deploy/container/constraints.txt --requirement requirements.txt
pip --no-deps .
PYTHONHASHSEED=0 python -m compileall -f -q --invalidation-mode unchecked-hash /opt/spotwatch/lib
