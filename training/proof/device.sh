#!/usr/bin/env bash
# The whole proof on one GPU machine without network: data, trainings, drives and frames side by side, all in the background.
#   training/proof/device.sh start          set up, start everything, return at once; again: go on with whatever has ended
#   training/proof/device.sh status         where everything stands
#   training/proof/device.sh wait SECONDS   a line now and then until all has ended or time is up
#   training/proof/device.sh stop           end all processes that `start` started
#   training/proof/device.sh pack FOLDER    results and logs, and the checkpoint $PACK, in files of at most 15 MB
# Wheels in .whl/ and glvnd packages in .gl/ of the tree are unpacked if present. All parameters are environment variables:
set -euo pipefail
RUN=${RUN:-/tmp/run} DATA=${DATA:-/tmp/data} HELDOUT=${HELDOUT:-/tmp/heldout} # results, training frames, held-out frames
CODE=${CODE:-/tmp/code} SITE=${SITE:-/tmp/site}                                # copies: later calls may replace the tree
PYTHON=${PYTHON:-python3}
DEVICE=${DEVICE:-cuda:0}                  # cuda:0 (each process sees one GPU only) or cpu
TRAIN_GPUS=${TRAIN_GPUS:-0 1}             # one training process for each; they share the rows between them
ROWS=${ROWS:-base,teacher_ar,ar,stage1,teacher_blocks,stage2,stage3,direct,kl,ar_teacher,answers,same} SEEDS=${SEEDS:-0,1,2}
VISION_FROM=${VISION_FROM-checkpoints/tiny} # of the tree: whose vision tower the random models start with ("": random)
BASE=${BASE-}                            # of the tree: a finished autoregressive checkpoint to start from, as row `base`
OVERRIDES=${OVERRIDES:-}                  # of recipes: key=value ROW.key=value ...
FRAMES=${FRAMES:-80000} SHARD_FRAMES=${SHARD_FRAMES:-128} WORLDS=${WORLDS:-20} # training frames, and processes making them
WORLD_EGL=${WORLD_EGL-1}                 # graphics devices for making data, given to the processes in turn
HELDOUT_FRAMES=${HELDOUT_FRAMES:-2400} HELDOUT_WORLDS=${HELDOUT_WORLDS:-6}
HELDOUT_MAPS=${HELDOUT_MAPS:-Town01,Town02,Town03,Town10HD}
DRIVERS=${DRIVERS:-28} DRIVE_EGL=${DRIVE_EGL-0,1} ROUTES=${ROUTES:-4} TOWNS=${TOWNS:-Town01,Town02,Town03,Town05,Town10HD}
DRIVE_OPTIONS=${DRIVE_OPTIONS---expert} DRIVE_AFTER=${DRIVE_AFTER-data} # data, trainings or "": what the drives wait for
DRIVE_MESA=${DRIVE_MESA-}                 # a folder with Mesa's lib/, dri/ and 50_mesa.json: drives draw on processors, not on a GPU
FRAMES_GPU=${FRAMES_GPU:-1} FRAME_OPTIONS=${FRAME_OPTIONS:-}          # where held-out frames are evaluated
PACK=${PACK-stage3/seed0}                # the checkpoint to bring home ("": none)
export PYTHONUNBUFFERED=1 PYTHONPATH=$CODE:$SITE TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-/tmp/inductor}
LOGS=$RUN/logs

setup() {
  [ -z "$DRIVE_MESA" ] || [ -e "$DRIVE_MESA/50_mesa.json" ] || { echo "DRIVE_MESA: no 50_mesa.json in $DRIVE_MESA" >&2; exit 2; }
  mkdir -p "$LOGS" "$DATA" "$HELDOUT" "$CODE" "$SITE"
  for deb in .gl/*.deb; do [ -e "$deb" ] && [ "$(id -u)" = 0 ] && [ -z "${NO_DEBS:-}" ] && dpkg -x "$deb" /; done
  [ -n "${NO_DEBS:-}" ] || ldconfig || true
  if [ -z "${NO_WHEELS:-}" ] && compgen -G '.whl/*.whl' > /dev/null; then
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$SITE" .whl/*.whl
    (cd / && "$PYTHON" -c 'import faster_coco_eval') || rm -rf "$SITE"/faster_coco_eval* # mAP is then made at home
  fi
  cp -r wamdiff2_core wamdiff2_sim training config "$CODE"/
  [ -z "$VISION_FROM" ] || { mkdir -p "$CODE/vision_from" && cp "$VISION_FROM"/* "$CODE/vision_from/"; }
  [ -z "$BASE" ] || [ -e "$RUN/base/seed0/DONE" ] || {
    mkdir -p "$RUN/base/seed0/checkpoint" && cp "$BASE"/* "$RUN/base/seed0/checkpoint/" && echo '{}' > "$RUN/base/seed0/DONE"
  }
  (cd "$CODE" && "$PYTHON" -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__, torch.cuda.device_count(), "GPUs")')
}

egl() {
  local vendor=/usr/local/nvidia/share/glvnd/egl_vendor.d/10_nvidia.json
  [ -e "$vendor" ] && export __EGL_VENDOR_LIBRARY_FILENAMES=$vendor
  unset EGL_PLATFORM || true
}

launch() { # NAME ARGUMENTS...: in the background and in a group of its own, unless it runs already
  local name=$1
  shift
  alive "$name" && return 0
  rm -f "$LOGS/$name.done"
  setsid nohup bash "$CODE/training/proof/device.sh" "$@" >> "$LOGS/$name.log" 2>&1 < /dev/null &
  echo $! > "$LOGS/$name.pid"
}

alive() { [ -e "$LOGS/$1.pid" ] && kill -0 "$(cat "$LOGS/$1.pid")" 2> /dev/null && [ ! -e "$LOGS/$1.done" ]; }

sittings() { # NAME MOST FINE COMMAND...: again while its code is above FINE (it goes on where it stopped); then say it has ended
  local name=$1 most=$2 fine=$3 code=0
  shift 3
  for ((k = 1; k <= most; k++)); do
    code=0
    "$@" || code=$?
    echo "=== $name: sitting $k ended with $code"
    [ $code -le "$fine" ] && break
    sleep 2
  done
  echo $code > "$LOGS/$name.done"
}

world() { # FOLDER FRAMES WORKERS SEED OPTIONS...
  local folder=$1 frames=$2 workers=$3 seed=$4
  shift 4
  "$PYTHON" -m wamdiff2_sim.dataset --out "$folder" --frames "$frames" --workers "$workers" --seed "$seed" \
    --shard-frames "$SHARD_FRAMES" ${WORLD_EGL:+--egl-devices "$WORLD_EGL"} "$@"
}

train() { # GPU
  local words=()
  read -r -a words <<< "$OVERRIDES"
  CUDA_VISIBLE_DEVICES=$1 "$PYTHON" -m training.proof train --run "$RUN" --data "$DATA" --rows "$ROWS" --seeds "$SEEDS" \
    --device "$DEVICE" ${VISION_FROM:+--vision-from "$CODE/vision_from"} ${words[@]+"${words[@]}"}
}

drives() {
  local words=()
  read -r -a words <<< "$DRIVE_OPTIONS"
  # Data needs the processors. Trainings share the graphics with drives, and pictures drawn between them cost small kernels much.
  until [ -z "$DRIVE_AFTER" ] || [ -e "$LOGS/data.done" ]; do sleep 1; done
  for gpu in $TRAIN_GPUS; do until [ "$DRIVE_AFTER" != trainings ] || [ -e "$LOGS/train$gpu.done" ]; do sleep 1; done; done
  CUDA_VISIBLE_DEVICES='' "$PYTHON" -m training.proof evaluate --run "$RUN" --rows "$ROWS" --seeds "$SEEDS" --workers "$DRIVERS" \
    --routes-per-town "$ROUTES" --towns "$TOWNS" ${DRIVE_EGL:+--egl-devices "$DRIVE_EGL"} ${words[@]+"${words[@]}"}
}

frames() {
  local words=()
  read -r -a words <<< "$FRAME_OPTIONS"
  until [ "$(cat "$LOGS/heldout.done" 2> /dev/null)" = 0 ]; do sleep 1; done
  CUDA_VISIBLE_DEVICES=$FRAMES_GPU "$PYTHON" -m training.proof frames --run "$RUN" --data "$HELDOUT" --rows "$ROWS" \
    --seeds "$SEEDS" --device "$DEVICE" ${words[@]+"${words[@]}"}
}

names() { echo data heldout; for gpu in $TRAIN_GPUS; do echo "train$gpu"; done; echo frames drives; }

mesa() { # software rendering, so that drives take nothing from the trainings' GPU
  export LD_LIBRARY_PATH=$DRIVE_MESA/lib LIBGL_DRIVERS_PATH=$DRIVE_MESA/dri __EGL_VENDOR_LIBRARY_FILENAMES=$DRIVE_MESA/50_mesa.json
  DRIVE_EGL=
}

count() { find "$1" -maxdepth 1 -name 'shard_*' 2> /dev/null | wc -l; }

brief() {
  local done failed
  done=$(find "$RUN" -maxdepth 3 -name DONE | wc -l) failed=$(find "$RUN" -maxdepth 3 -name FAILED | wc -l)
  echo "--- $(date -u +%T) shards $(count "$DATA") held out $(count "$HELDOUT") runs $done done $failed failed," \
    "drives $(wc -l 2> /dev/null < "$RUN/eval/drives.jsonl" || echo 0), parts $(find "$RUN/eval" -name '*_seed*' 2> /dev/null | wc -l)," \
    "load $(cut -d' ' -f1 /proc/loadavg), $(nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader 2> /dev/null | tr '\n' ';')"
  for gpu in $TRAIN_GPUS; do echo "train$gpu: $(grep -v 'Loading weights' "$LOGS/train$gpu.log" 2> /dev/null | tail -n 1 | cut -c 1-200)"; done
}

status() {
  brief
  for name in $(names); do
    local state=running
    alive "$name" || state="ended $(cat "$LOGS/$name.done" 2> /dev/null || echo 'without a word')"
    echo "$name: $state: $(tail -n 1 "$LOGS/$name.log" 2> /dev/null | tr '\r' '\n' | tail -n 1 | cut -c 1-200)"
  done
  find "$RUN" -maxdepth 3 -name DONE | sed "s|$RUN/||; s|/DONE||" | sort | tr '\n' ' '
  echo
  find "$RUN" -maxdepth 3 -name FAILED | while read -r file; do echo "FAILED $file: $(tail -n 1 "$file" | cut -c 1-300)"; done
  grep -h FAILED "$LOGS"/*.log 2> /dev/null | tail -n 5 || true
}

ended() { for name in $(names); do alive "$name" && return 1; done; return 0; }

case ${1:?start, status, wait, stop or pack} in
  start)
    setup
    launch heldout _heldout
    launch data _data
    for gpu in $TRAIN_GPUS; do launch "train$gpu" _train "$gpu"; done
    launch frames _frames
    launch drives _drives
    brief
    ;;
  _heldout) egl; cd "$CODE"; sittings heldout 4 0 world "$HELDOUT" "$HELDOUT_FRAMES" "$HELDOUT_WORLDS" 7 --natural --maps "$HELDOUT_MAPS" ;;
  _data) egl; cd "$CODE"; sittings data 6 0 world "$DATA" "$FRAMES" "$WORLDS" 1 ;;
  _train) cd "$CODE"; sittings "train$2" 2 0 train "$2" ;;
  _frames) cd "$CODE"; sittings frames 2 0 frames ;;
  _drives) if [ -n "$DRIVE_MESA" ]; then mesa; else egl; fi; cd "$CODE"; sittings drives 3 2 drives ;;
  status) status ;;
  wait)
    end=$((SECONDS + $2)) next=0
    while [ $SECONDS -lt $end ] && ! ended; do
      [ $SECONDS -lt $next ] || { next=$((SECONDS + 30)); brief; }
      sleep 1
    done
    status
    ;;
  stop)
    for name in $(names); do
      if alive "$name"; then kill -- "-$(cat "$LOGS/$name.pid")" 2> /dev/null || true; fi
    done
    ;;
  pack)
    mkdir -p "$2"
    cd "$RUN"
    find . -maxdepth 3 \( -name log.csv -o -name DONE -o -name FAILED \) > logs/packed.txt
    find eval logs -type f -name '*.*' ! -name packed.txt ! -name '*.pid' >> logs/packed.txt 2> /dev/null || true
    tar czf - --ignore-failed-read -T logs/packed.txt | split -b 15000000 - "$2/results.tar.gz." || true # logs still grow
    if [ -n "$PACK" ] && [ -e "$PACK/checkpoint/config.json" ]; then
      tar cf - -C "$PACK" checkpoint | split -b 15000000 - "$2/$(echo "$PACK" | tr / _).tar."
    fi
    ls -la "$2"
    ;;
  *) echo "expected start, status, wait, stop or pack" >&2; exit 2 ;;
esac
