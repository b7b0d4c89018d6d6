#!/usr/bin/env bash
# Makes the tiny checkpoint on one GPU machine without network: data written and read side by side, training in the background.
#   training/device_run.sh start AR_MINUTES BLOCK_MINUTES WORKERS   set up, start world and training, return at once
#   training/device_run.sh wait SECONDS                             show progress until done or time is up
#   training/device_run.sh pack FOLDER                              checkpoint, logs and measurements as files of at most 15 MB
# Wheels in .whl/ and glvnd packages in .gl/ of the tree are unpacked if present. Calling `start` again resumes.
set -euo pipefail
RUN=${RUN:-/tmp/run} DATA=${DATA:-/tmp/data} CODE=${CODE:-/tmp/code} SITE=/tmp/site
PYTHON=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 PYTHONPATH=$CODE:$SITE TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

setup() {
  mkdir -p "$RUN" "$DATA" "$CODE"
  for deb in .gl/*.deb; do [ -e "$deb" ] && dpkg -x "$deb" /; done
  ldconfig || true
  if compgen -G '.whl/*.whl' > /dev/null; then
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$SITE" .whl/*.whl
  fi
  # later calls may replace the working tree: run from a copy
  cp -r wamdiff2_core wamdiff2_sim training config "$CODE"/
  "$PYTHON" -c 'import torch; print("torch", torch.__version__, torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU")'
}

egl() {
  local vendor=/usr/local/nvidia/share/glvnd/egl_vendor.d/10_nvidia.json
  [ -e "$vendor" ] && export __EGL_VENDOR_LIBRARY_FILENAMES=$vendor
  unset EGL_PLATFORM || true
}

world() { # WORKERS: restarted when it fails, until training says stop
  egl
  cd "$CODE"
  while [ ! -e "$RUN/stop" ]; do
    "$PYTHON" -m wamdiff2_sim.dataset --out "$DATA" --frames 0 --seed "$RANDOM" --workers "$1" --shard-frames 128 || sleep 2
  done
}

train() { # AR_MINUTES BLOCK_MINUTES: up to three sittings, each goes on where the one before was cut off
  for sitting in 1 2 3; do
    if "$PYTHON" -m training.train tiny_ar,tiny_blocks "init=$RUN/random" "data=$DATA" "out=$RUN" \
      "tiny_ar.max_minutes=$1" "tiny_blocks.max_minutes=$2" ${EXTRA:-}; then return 0; fi
    echo "sitting $sitting failed"
  done
  return 1
}

trainer() { # AR_MINUTES BLOCK_MINUTES
  cd "$CODE"
  trap 'touch "$RUN/stop"; [ -e "$RUN/world.pid" ] && kill -- -"$(cat "$RUN/world.pid")" 2> /dev/null; touch "$RUN/done"' EXIT
  [ -e "$RUN/random/config.json" ] || "$PYTHON" -m training.build_tiny --out "$RUN/random"
  train "$1" "$2"
  touch "$RUN/stop"
  kill -- -"$(cat "$RUN/world.pid")" 2> /dev/null || true
  "$PYTHON" -m wamdiff2_core.evaluate.frame_batches "$RUN/tiny_blocks/checkpoint" "$DATA" --holdout 50 --frames 512 --device cuda \
    --configs "B=1|4|8|16|32" --out "$RUN/frames.jsonl.gz"
}

case ${1:?start, wait or pack} in
  start)
    setup
    rm -f "$RUN/stop" "$RUN/done"
    if ! { [ -e "$RUN/world.pid" ] && kill -0 "$(cat "$RUN/world.pid")" 2> /dev/null; }; then
      setsid nohup bash "$CODE/training/device_run.sh" _world "$4" > "$RUN/world.log" 2>&1 < /dev/null & echo $! > "$RUN/world.pid"
    fi
    setsid nohup bash "$CODE/training/device_run.sh" _train "$2" "$3" > "$RUN/train.log" 2>&1 < /dev/null & echo $! > "$RUN/train.pid"
    ;;
  _world) world "$2" ;;
  _train) trainer "$2" "$3" ;;
  wait)
    end=$((SECONDS + $2)) next=0
    while [ $SECONDS -lt $end ] && [ ! -e "$RUN/done" ]; do
      if [ $SECONDS -ge $next ]; then
        next=$((SECONDS + 30))
        echo "--- $(date -u +%T) shards $(find "$DATA" -maxdepth 1 -name 'shard_*' | wc -l) $(nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader 2> /dev/null || true)"
        grep -v 'Loading weights' "$RUN/train.log" | tail -n 2 || true
        [ "$(find "$DATA" -maxdepth 1 -name 'shard_*' | wc -l)" -gt 0 ] || tail -c 600 "$RUN/world.log" || true
      fi
      sleep 1
    done
    if [ -e "$RUN/done" ]; then echo "=== done"; tail -n 25 "$RUN/train.log"; fi
    ;;
  pack)
    cd "$RUN"
    latest=$( [ -e tiny_blocks/checkpoint/config.json ] && echo tiny_blocks || echo tiny_ar )
    tar cf - -C "$latest" checkpoint | split -b 15000000 - "$2/$latest.tar."
    { tail -c 300000 world.log > world_tail.log; } 2> /dev/null || true
    sample=$(find "$DATA" -maxdepth 1 -name 'shard_*' | sort | head -n 1)
    tar czf "$2/logs.tar.gz" --ignore-failed-read train.log world_tail.log frames.jsonl.gz tiny_ar/log.csv tiny_blocks/log.csv 2> /dev/null || true
    [ -z "$sample" ] || tar czf "$2/sample_shard.tar.gz" -C "$DATA" "$(basename "$sample")"
    ls -la "$2"
    ;;
  *) echo "expected start, wait or pack" >&2; exit 2 ;;
esac
