#!/usr/bin/env bash
# Puts the official leaderboard's code and CARLA's maps into build/leaderboard/site (see requirements-leaderboard.txt).
# A repeat takes a moment. Where CARLA has no wheel for this Python, the tests that need both are skipped and say so.
set -euo pipefail
cd "$(dirname "$0")/.."
site=$PWD/build/leaderboard/site
stamp=$PWD/build/leaderboard/stamp
hash=$(cat requirements-leaderboard.txt <(.venv/bin/python -VV) | sha256sum | cut -c1-16)
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$hash" ] && exit 0
rm -rf "$site" "$stamp"
mkdir -p "$site"
.venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --target "$site" -r requirements-leaderboard.txt
printf '%s\n' "$hash" >"$stamp"
