"""The driver node's parameters: declared, checked as a whole, applied as a whole, and told to whoever listens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.parameter import Parameter
from std_msgs.msg import String

from wamdiff2_core.errors import ConfigError
from wamdiff2_ros import settings_report as report
from wamdiff2_ros.parameters import DESCRIPTIONS, Settings, changed, parameter_value
from wamdiff2_ros.qos import LATCHED


class LiveParameters:
    """`settings` is one frozen value, replaced by one assignment: a reader in another thread sees old or new, whole.

    `configured`: set by the node; what decides on loading is fixed then. `on_change(before)` follows every change.
    `problem(settings)`: why what is loaded cannot do as they say, None if it can; asked before a change is taken.
    """

    def __init__(
        self, node: Any, on_change: Callable[[Settings], None], problem: Callable[[Settings], str | None]
    ) -> None:
        """Declares on `node`. Raises ConfigError or ParameterException if the values it was started with are wrong."""
        self._node = node
        self._on_change, self._problem = on_change, problem
        self.configured = False
        self.settings = self._declare(Settings())
        self.autostart = bool(node.declare_parameter("autostart", True).value)
        # Not a lifecycle publisher: a recorder may ask at any time.
        self._publisher = node.create_publisher(String, "~/output/parameters", LATCHED)
        node.add_pre_set_parameters_callback(self._whole_numbers_serve)
        node.add_on_set_parameters_callback(self._check)
        node.add_post_set_parameters_callback(self._apply)

    def warn_of_unknown(self) -> None:
        """Log each value that the node was started with and does not know."""
        declared = self._node.list_parameters([], 0).names
        for warning in report.unknown_names(self._node._parameter_overrides, declared):
            self._node.get_logger().warning(warning)

    def in_force(self) -> dict[str, Any]:
        """All parameters of the node with their values."""
        return {name: self._node.get_parameter(name).value for name in self._node.list_parameters([], 0).names}

    def publish(self, why: str) -> None:
        """Tell, for late listeners too, which parameters are in force."""
        stamp_s = self._node.get_clock().now().nanoseconds * 1e-9
        text = report.as_json(self._node.get_fully_qualified_name(), stamp_s, why, self.in_force())
        self._publisher.publish(String(data=text))

    def _declare(self, defaults: Settings) -> Settings:
        values: dict[str, Any] = {}
        for name in DESCRIPTIONS:
            default = getattr(defaults, name)
            declared = self._node.declare_parameter(name, parameter_value(default), _descriptor(name, default))
            values[name] = declared.value
        settings = changed(defaults, values, configured=False)
        whole = [
            name for name, value in values.items() if type(value) is int and isinstance(getattr(settings, name), float)
        ]
        self._node.set_parameters([Parameter(name, value=getattr(settings, name)) for name in whole])
        return settings

    def _whole_numbers_serve(self, parameters: list[Parameter]) -> list[Parameter]:
        """`threshold: 1` means 1.0."""
        return [_as_float(p) if isinstance(getattr(self.settings, p.name, None), float) else p for p in parameters]

    def _check(self, parameters: list[Parameter]) -> SetParametersResult:
        """Accept a set of parameters only if the settings stay valid as a whole."""
        try:
            settings = changed(self.settings, {p.name: p.value for p in parameters}, self.configured)
        except ConfigError as error:
            return SetParametersResult(successful=False, reason=str(error))
        problem = self._problem(settings) if self.configured else None
        return SetParametersResult(successful=problem is None, reason=problem or "")

    def _apply(self, parameters: list[Parameter]) -> None:
        before = self.settings
        self.settings = changed(before, {p.name: p.value for p in parameters}, self.configured)
        self._on_change(before)
        self.publish(", ".join(p.name for p in parameters))


def _descriptor(name: str, default: Any) -> ParameterDescriptor:
    described = DESCRIPTIONS[name]
    # Only a dynamic type lets a whole number through to where it is made a float.
    descriptor = ParameterDescriptor(description=described.text, dynamic_typing=isinstance(default, float))
    if described.low is None or described.high is None:
        return descriptor
    if isinstance(default, int):
        descriptor.integer_range = [IntegerRange(from_value=int(described.low), to_value=int(described.high))]
    else:
        bounds = FloatingPointRange(from_value=float(described.low), to_value=float(described.high))
        descriptor.floating_point_range = [bounds]
    return descriptor


def _as_float(parameter: Parameter) -> Parameter:
    if isinstance(parameter.value, int) and not isinstance(parameter.value, bool):
        return Parameter(parameter.name, value=float(parameter.value))
    return parameter
