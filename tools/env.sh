# Source this: puts .venv first, and an installed ROS 2 with our messages behind it where there is one.
_wamdiff2_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for _distro in ${ROS_DISTRO:-} kilted jazzy rolling; do
    if [ -f "${WAMDIFF2_ROS_ROOT:-/opt/ros}/$_distro/setup.bash" ]; then
        # shellcheck disable=SC1090
        source "${WAMDIFF2_ROS_ROOT:-/opt/ros}/$_distro/setup.bash"
        export LD_LIBRARY_PATH=$_wamdiff2_root/build/ros/prefix/lib:${LD_LIBRARY_PATH:-}
        export AMENT_PREFIX_PATH=$_wamdiff2_root/build/ros/prefix:${AMENT_PREFIX_PATH:-}
        break
    fi
done
export PATH=$_wamdiff2_root/.venv/bin:$PATH
unset _wamdiff2_root _distro
