#!/usr/bin/env bash
# Builds msg/ with plain cmake into build/ros/prefix and makes it importable in .venv.
# WAMDIFF2_ROS: folder of an installed ROS 2 distribution; empty: the ROS 2 wheels in .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
venv=$root/.venv
prefix=$root/build/ros/prefix
log=$root/build/ros/build.log
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
mkdir -p build/ros
if [ -n "${WAMDIFF2_ROS:-}" ]; then
    set +u
    # shellcheck disable=SC1091
    source "$WAMDIFF2_ROS/setup.bash"
    set -u
    interpreter=$(command -v python3)
else
    # The wheels' exported targets name an include folder of the machine that built them: blank it.
    { grep -rlZ '/opt/python/cp3' "$venv/share" --include='*Export.cmake' | xargs -0 -r sed -i -E 's#"/opt/python/cp3[^"]*"#""#'; } || true
    export PATH=$venv/bin:$PATH AMENT_PREFIX_PATH=$venv CMAKE_PREFIX_PATH=$venv
    interpreter=$venv/bin/python
fi
run() { "$@" >>"$log" 2>&1 || { tail -30 "$log" >&2; echo "message build failed; full output: build/ros/build.log" >&2; exit 1; }; }
: >"$log"
# CMake refuses include folders below its source folder, and numpy's lies in .venv: build from a copy.
rm -rf build/ros/source
mkdir -p build/ros/source
cp -rp CMakeLists.txt package.xml msg build/ros/source/
run cmake -S build/ros/source -B build/ros/cmake -G Ninja -DPython3_EXECUTABLE="$interpreter" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DBUILD_TESTING=OFF -DWAMDIFF2_MESSAGES_ONLY=ON -DCMAKE_INSTALL_PREFIX="$prefix"
run cmake --build build/ros/cmake --target install
# The wheels' start-up hook puts every site-packages/ros_*.libs on the library path.
ln -sfn "$prefix/lib" "$site/ros_wamdiff2.libs"
generated=$(dirname "$(find "$prefix/lib" "$prefix/local" -maxdepth 5 -type d -name wamdiff2 -path '*python3*' 2>/dev/null | head -1)")
[ -d "$generated/wamdiff2" ] || { echo "no generated Python package below $prefix" >&2; exit 1; }
printf '%s\n' "$generated" >"$site/wamdiff2_messages.pth"
