"""GLSL 3.30 programs.

Light is worked out per vertex and colours stay in display space, which keeps the software driver fast.

`NIGHT` and `WET` are compile-time switches, so that a dry day pays for neither.
"""

from __future__ import annotations

_COMMON = """
uniform mat4 u_matrix;
uniform vec3 u_eye;
uniform vec3 u_sun;          // towards the sun (or moon)
uniform vec3 u_sun_colour;
uniform vec3 u_sky_light;
uniform vec3 u_ground_light;

vec3 unit(vec4 code) { return (code.xyz * 255.0 - 128.0) / 127.0; }

vec3 daylight(vec3 n) {
    return u_sun_colour * max(dot(n, u_sun), 0.0) + mix(u_ground_light, u_sky_light, n.z * 0.5 + 0.5);
}
"""

_FOG = """
// per metre, base 2; worked out at the vertices, where points behind the eye count as clearer than clear
uniform float u_fog;
float clear(vec4 clip) { return exp2(-u_fog * max(clip.w, -20.0)); }
"""

_FOGGED = """
uniform vec3 u_fog_colour;
vec3 fogged(vec3 colour, float clear) { return mix(u_fog_colour, colour, min(clear, 1.0)); }
"""

_BEAM = """
uniform mat4 u_ego;          // map -> ego frame
uniform float u_lamps;       // strength of street lamps
vec3 beam(vec3 p) {          // the ego's dipped beam at a point of the ego frame
    float ahead = max(p.x - 3.0, 0.0);
    float spread = p.y / (1.6 + 0.42 * ahead);
    float height = p.z - 0.7 - 0.012 * ahead;
    float shape = exp2(-2.2 * spread * spread) * exp2(-1.6 * max(height, 0.0)) * smoothstep(0.0, 4.0, ahead);
    return vec3(1.0, 0.95, 0.82) * 1.25 * shape / (1.0 + ahead * ahead / 700.0);
}
"""

STATIC_VERTEX = (
    _COMMON
    + _FOG
    + _BEAM
    + """
in vec3 in_pos; in vec2 in_uv; in vec4 in_normal; in vec4 in_colour; in vec4 in_extra;
out vec3 v_uv; out vec4 v_colour;   // v_colour.a: how little fog
#ifdef WET
out vec2 v_wet;
#endif
#ifdef NIGHT
out vec3 v_ego; out vec3 v_light;
#endif
void main() {
    gl_Position = u_matrix * vec4(in_pos, 1.0);
    v_colour.a = clear(gl_Position);
    v_uv = vec3(in_uv, floor(in_extra.z * 255.0 + 0.5));
    vec3 n = unit(in_normal);
    vec3 light = daylight(n);
#ifdef WET
    vec3 away = in_pos - u_eye;
    float grazing = 1.0 + away.z / length(away) * step(0.5, n.z);   // 1 towards the horizon
    v_wet = vec2(in_extra.y, pow(clamp(grazing, 0.0, 1.0), 5.0) * in_extra.y);
#endif
#ifdef NIGHT
    v_ego = (u_ego * vec4(in_pos, 1.0)).xyz;
    v_light = mix(light + vec3(1.0, 0.82, 0.55) * (u_lamps * in_extra.x), vec3(1.0), in_colour.a);
    v_colour.rgb = in_colour.rgb * 1.275;
#else
    v_colour.rgb = in_colour.rgb * mix(light, vec3(1.0), in_colour.a) * 1.275;
#endif
}
"""
)

STATIC_FRAGMENT = (
    _FOGGED
    + _BEAM
    + """
uniform sampler2DArray u_texture;
uniform vec3 u_reflection;
uniform float u_wet;
in vec3 v_uv; in vec4 v_colour;
#ifdef WET
in vec2 v_wet;
#endif
#ifdef NIGHT
in vec3 v_ego; in vec3 v_light;
#endif
out vec4 f_colour;
void main() {
    vec4 t = texture(u_texture, v_uv);
    vec3 colour = t.rgb * v_colour.rgb;
#ifdef WET
    colour *= 1.0 - 0.38 * u_wet * v_wet.x;
#endif
#ifdef NIGHT
    colour = colour * (v_light + beam(v_ego)) + vec3(1.0, 0.78, 0.45) * t.a * (0.9 * step(4.5, v_uv.z));
#endif
#ifdef WET
    colour = mix(colour, u_reflection, min(u_wet * v_wet.y * (0.35 + 1.1 * t.a), 0.85));
#endif
    f_colour = vec4(fogged(colour, v_colour.a), 1.0);
}
"""
)

ACTOR_VERTEX = (
    _COMMON
    + _FOG
    + _BEAM
    + """
uniform float u_time; uniform float u_night; uniform vec3 u_mirror_low; uniform vec3 u_mirror_high;
in vec3 in_pos; in vec4 in_normal;
in vec4 in_place;            // x, y, z, yaw
in vec4 in_size;             // length, width, height, gait
in vec4 in_paint;            // rgb, flags
in vec4 in_second;           // rgb, skin tone
out vec4 v_colour;

const float LAMP_STEP = 0.44;   // actor_mesh.LAMP_STEP_M
const vec3 SKIN_A = vec3(0.92, 0.72, 0.58), SKIN_B = vec3(0.36, 0.24, 0.17);
const vec3 HAIR_A = vec3(0.30, 0.22, 0.12), HAIR_B = vec3(0.05);
const vec3 RED = vec3(1.0, 0.09, 0.07), YELLOW = vec3(1.0, 0.78, 0.06), GREEN = vec3(0.08, 1.0, 0.45);
const vec3 AMBER = vec3(1.0, 0.62, 0.05), WHITE = vec3(1.3, 1.25, 1.1);
const vec3 MATERIAL[19] = vec3[19](   // by part code; zero where instances bring their own
    vec3(0.0), vec3(0.05, 0.06, 0.07), vec3(0.055), vec3(0.55, 0.56, 0.58), vec3(0.80, 0.82, 0.84),
    vec3(0.42, 0.03, 0.03), vec3(0.25, 0.02, 0.02), vec3(0.50, 0.26, 0.08), vec3(0.50, 0.26, 0.08), vec3(0.0),
    vec3(0.0), vec3(0.0), vec3(0.0), vec3(0.0), vec3(0.16, 0.02, 0.02),
    vec3(0.15, 0.11, 0.02), vec3(0.02, 0.13, 0.06), vec3(0.045, 0.047, 0.05), vec3(0.82, 0.82, 0.76)
);

vec3 place(vec3 p) {
    float c = cos(in_place.w), s = sin(in_place.w);
    return vec3(c * p.x - s * p.y, s * p.x + c * p.y, p.z);
}

void main() {
    int part = int(in_normal.w * 255.0 + 0.5);
    int flags = int(in_paint.a * 255.0 + 0.5);
    vec3 p = in_pos;
    if (part == 12 || part == 13) p.x += (part == 12 ? 1.0 : -1.0) * in_size.w * (0.5 - p.z) * 0.9;
    int lamp = flags >> 4;   // signal heads: 1 red, 2 yellow, 3 green, 4 dark
    if (part - 13 == lamp && lamp > 0) {   // a lit lamp blooms: far away it looks larger than it is
        vec2 middle = vec2(0.0, float(15 - part) * LAMP_STEP);
        p.yz = middle + (p.yz - middle) * clamp(distance(in_place.xyz, u_eye) / 22.0, 1.0, 2.0);
        p.x += 0.02;
    }
    vec3 world = place(p * in_size.xyz) + in_place.xyz;
    vec3 n = place(normalize(unit(in_normal) / in_size.xyz));
    gl_Position = u_matrix * vec4(world, 1.0);

    vec3 light = daylight(n);
#ifdef NIGHT
    light += beam((u_ego * vec4(world, 1.0)).xyz) + u_lamps * 0.10;
#endif
    vec3 away = normalize(world - u_eye);
    vec3 bounced = reflect(away, n);
    vec3 mirror = mix(u_mirror_low, u_mirror_high, smoothstep(-0.15, 0.35, bounced.z));
    float edge = pow(1.0 - abs(dot(away, n)), 3.0);
    float blink = step(fract(u_time * 1.5), 0.55);
    bool braking = (flags & 1) != 0, left = (flags & 2) != 0, right = (flags & 4) != 0;
    vec3 own = MATERIAL[part], glow = vec3(0.0);
    if (part == 0) own = in_paint.rgb;
    else if (part == 9) own = mix(SKIN_A, SKIN_B, in_second.a);
    else if (part == 10 || part == 12 || part == 13) own = in_second.rgb;
    else if (part == 11) own = mix(HAIR_A, HAIR_B, in_second.a);
    vec3 base = own * light;
    float spark = pow(max(dot(bounced, u_sun), 0.0), 24.0);
    if (part == 0) base = mix(base, mirror, 0.06 + 0.30 * edge) + u_sun_colour * 0.5 * spark;
    else if (part == 1) base = mix(base, mirror, 0.22 + 0.5 * edge);
    else if (part == 4) glow = WHITE * u_night;
    else if (part == 5) glow = braking ? RED : vec3(0.55, 0.02, 0.02) * u_night;
    else if (part == 6 && braking) glow = RED;
    else if ((part == 7 && left) || (part == 8 && right)) glow = AMBER * blink;
    else if (part == 14 && lamp == 1) glow = RED;
    else if (part == 15 && lamp == 2) glow = YELLOW;
    else if (part == 16 && lamp == 3) glow = GREEN;
    float fog_free = clear(gl_Position);
    v_colour = dot(glow, glow) > 0.0 ? vec4(glow, pow(fog_free, 0.35)) : vec4(base, fog_free);   // lamps pierce fog
}
"""
)

ACTOR_FRAGMENT = (
    _FOGGED
    + """
in vec4 v_colour;
out vec4 f_colour;
void main() { f_colour = vec4(fogged(v_colour.rgb, v_colour.a), 1.0); }
"""
)

ID_VERTEX = """
uniform mat4 u_matrix;
in vec3 in_pos; in vec4 in_place; in vec4 in_size; in vec4 in_id;
flat out vec4 v_id;
void main() {
    float c = cos(in_place.w), s = sin(in_place.w);
    vec3 p = in_pos * in_size.xyz;
    gl_Position = u_matrix * vec4(vec3(c * p.x - s * p.y, s * p.x + c * p.y, p.z) + in_place.xyz, 1.0);
    v_id = in_id;
}
"""
ID_FRAGMENT = "flat in vec4 v_id; out vec4 f_colour; void main() { f_colour = v_id; }"

ID_STATIC_VERTEX = "uniform mat4 u_matrix; in vec3 in_pos; void main() { gl_Position = u_matrix * vec4(in_pos, 1.0); }"
ID_STATIC_FRAGMENT = "out vec4 f_colour; void main() { f_colour = vec4(0.0); }"

SHADOW_VERTEX = (
    _FOG
    + """
uniform mat4 u_matrix; uniform vec2 u_shift;   // shadow displacement per metre of height
in vec2 in_corner; in vec4 in_place; in vec4 in_size; in vec4 in_paint;
out vec3 v_at;
void main() {
    vec2 stretch = vec2(0.58, 0.62);
    float c = cos(in_place.w), s = sin(in_place.w);
    vec2 p = in_corner * in_size.xy * stretch + in_corner * 0.12;
    vec2 flat_p = vec2(c * p.x - s * p.y, s * p.x + c * p.y);
    float far_side = clamp(dot(normalize(flat_p + 1e-5), normalize(u_shift + 1e-5)), -1.0, 1.0);
    flat_p += u_shift * in_size.z * 0.5 * (1.0 + far_side);
    gl_Position = u_matrix * vec4(in_place.xy + flat_p, in_place.z + 0.045, 1.0);
    if (in_paint.a > 0.06) gl_Position = vec4(2.0, 2.0, 2.0, 1.0);   // none for signal heads (lamp in the flags)
    v_at = vec3(in_corner, clear(gl_Position));
}
"""
)
SHADOW_FRAGMENT = """
uniform float u_shadow;
in vec3 v_at;
out vec4 f_colour;
void main() {
    vec2 d = clamp((1.0 - abs(v_at.xy)) * 3.0, 0.0, 1.0);
    f_colour = vec4(0.0, 0.0, 0.0, d.x * d.y * u_shadow * min(v_at.z, 1.0));
}
"""

SKY_VERTEX = """
uniform mat4 u_matrix; uniform vec3 u_eye;
uniform vec3 u_horizon; uniform vec3 u_zenith; uniform vec3 u_sun; uniform vec3 u_glow; uniform vec2 u_drift;
in vec3 in_ray;              // a dome around the eye
out vec3 v_colour; out vec3 v_cloud;
void main() {
    gl_Position = (u_matrix * vec4(u_eye + in_ray * 100.0, 1.0)).xyww;
    float up = max(in_ray.z, 0.0);
    float near = max(dot(in_ray, u_sun), 0.0);
    v_colour = mix(u_horizon, u_zenith, 1.0 - pow(1.0 - up, 3.0));
    v_colour += u_glow * (0.2 * pow(near, 8.0) + 0.5 * pow(near, 60.0));
    v_cloud = vec3(in_ray.xy / (up + 0.15) * 0.22 + u_drift, smoothstep(0.0, 0.12, in_ray.z));
}
"""
SKY_FRAGMENT = """
uniform sampler2DArray u_texture; uniform vec4 u_cloud;
in vec3 v_colour; in vec3 v_cloud;
out vec4 f_colour;
void main() {
    float cover = texture(u_texture, vec3(v_cloud.xy, 6.0)).r * 1.275;
    cover = clamp((cover - u_cloud.a) * 3.0, 0.0, 1.0) * v_cloud.z;
    f_colour = vec4(mix(v_colour, u_cloud.rgb, cover), 1.0);
}
"""

SUN_VERTEX = """
uniform mat4 u_matrix; uniform vec3 u_eye; uniform vec3 u_sun;
in vec2 in_corner;
out vec2 v_at;
void main() {
    vec3 side = normalize(vec3(-u_sun.y, u_sun.x, 0.0));
    vec3 up = cross(u_sun, side);
    vec3 ray = u_sun + (side * in_corner.x + up * in_corner.y) * 0.045;
    gl_Position = (u_matrix * vec4(u_eye + ray * 100.0, 1.0)).xyww;
    v_at = in_corner;
}
"""
SUN_FRAGMENT = """
uniform vec3 u_glow;
in vec2 v_at;
out vec4 f_colour;
void main() {
    float d = length(v_at);
    float strength = clamp((0.62 - d) * 12.0, 0.0, 1.0) + 0.35 * clamp(1.0 - d, 0.0, 1.0);
    f_colour = vec4(vec3(1.0, 0.98, 0.92), strength * clamp(max(u_glow.r, u_glow.b) * 1.3, 0.0, 1.0));
}
"""


RAIN_VERTEX = """
uniform float u_time; uniform vec2 u_pixel;   // u_pixel: one pixel in clip space
in vec2 in_corner;
out float v_strength;
float hash(float n) { return fract(sin(n * 12.9898) * 43758.5453); }
void main() {
    float drop = float(gl_InstanceID);
    float moment = floor(u_time * 20.0) * 0.37;
    float near = hash(drop + 0.5);
    vec2 middle = vec2(hash(drop + moment), hash(drop * 1.7 + moment + 9.1)) * 2.2 - 1.1;
    float along = in_corner.y * (0.04 + 0.12 * near);
    vec2 at = middle + vec2(in_corner.x * u_pixel.x * (0.6 + 0.5 * near) + 0.12 * along, along);
    gl_Position = vec4(at, 0.0, 1.0);
    v_strength = 0.10 + 0.12 * near;
}
"""
RAIN_FRAGMENT = """
uniform vec3 u_horizon;
in float v_strength;
out vec4 f_colour;
void main() { f_colour = vec4(u_horizon * 1.15 + 0.03, v_strength); }
"""


def source(body: str, switches: tuple[str, ...] = ()) -> str:
    """A complete shader: version, switches, body."""
    return "#version 330 core\n" + "".join(f"#define {name}\n" for name in switches) + body
