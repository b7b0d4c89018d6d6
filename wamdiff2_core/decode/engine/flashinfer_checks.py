"""Whether FlashInfer can build and run its kernels here: findings as data, without importing it or touching a GPU.

FlashInfer compiles each kernel on first use, with nvcc and ninja, into a cache folder. Everything that this needs is
looked at beforehand, in the way FlashInfer itself will look for it, so that a frame never meets a missing compiler.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE, KNOWN_VERSION = "flashinfer-python", "0.6.8.post1"
LEAST_CAPABILITY = (8, 0)  # bfloat16
KERNELS = {
    "attention": r"batch_prefill_with_kv_cache_.*",
    "norm": r"norm",
    "rotation": r"rope",
    "activation": r"silu_and_mul",
}
"""Kernels that our engine uses, and the names of their folders in the cache."""
BUILD = "`wamdiff2 doctor --build` compiles them now, about 75 s each"


@dataclass(frozen=True)
class Finding:
    """One thing looked at. ok: nothing stands in the way; found: what is there; do: the way out, if not ok."""

    name: str
    ok: bool
    found: str
    do: str = ""


def findings(
    capability: tuple[int, int] | None, environ: Mapping[str, str] | None = None, version: str | None = None
) -> list[Finding]:
    """All checks. capability: of the GPU, None without one. version: of FlashInfer; default: the installed one's."""
    known = os.environ if environ is None else environ
    version = version or installed_version()
    home = cuda_home(known)
    return [
        _package(version),
        _gpu(capability),
        _architectures(known, capability),
        _home(known, home),
        _nvcc(known, home),
        _tool("ninja", known.get("PATH", ""), "install it: `pip install ninja`"),
        _tool(known.get("CXX") or "c++", known.get("PATH", ""), "install a C++ compiler: `apt install g++`"),
        _cache(known, version, capability),
    ]


def first_obstacle(found: list[Finding]) -> Finding | None:
    """What keeps FlashInfer from being used, None if nothing does. Kernels still to be compiled are no obstacle."""
    return next((one for one in found if not one.ok and one.name != "kernels"), None)


def installed_version() -> str | None:
    """Version of the installed FlashInfer, None without."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def cuda_home(environ: Mapping[str, str]) -> str | None:
    """The CUDA folder FlashInfer will take: CUDA_HOME, CUDA_PATH, where nvcc lies, /usr/local/cuda; None: none."""
    named = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    if named:
        return named
    found = shutil.which("nvcc", path=environ.get("PATH", ""))
    if found:
        return str(Path(found).parent.parent)
    return "/usr/local/cuda" if Path("/usr/local/cuda").is_dir() else None


def cache_folder(environ: Mapping[str, str], version: str, architectures: list[str]) -> Path:
    """Where compiled kernels lie: one folder for each version and list of architectures."""
    base = Path(environ.get("FLASHINFER_WORKSPACE_BASE") or environ.get("HOME") or Path.home())
    return base / ".cache" / "flashinfer" / version / "_".join(architectures) / "cached_ops"


def architectures_of(environ: Mapping[str, str], capability: tuple[int, int] | None) -> list[str]:
    """Architectures that will be compiled for, like "90a"; ValueError for a list that cannot be read."""
    listed = environ.get("FLASHINFER_CUDA_ARCH_LIST")
    if listed is None:
        return [] if capability is None else [_suffixed(*capability)]
    found = []
    for part in listed.split(" "):  # FlashInfer splits at single spaces, so two in a row break it as well
        match = re.fullmatch(r"(\d+)\.(\d+)([a-z]?)", part)
        if match is None:
            raise ValueError(part)
        major, minor, suffix = int(match[1]), int(match[2]), match[3]
        found.append(f"{major}{minor}{suffix}" if suffix else _suffixed(major, minor))
    return sorted(set(found), key=lambda name: (int(re.sub(r"\D", "", name)), name))


def _suffixed(major: int, minor: int) -> str:
    if major < 9:
        return f"{major}{minor}"
    return f"{major}{minor}{'f' if (major, minor) == (12, 0) else 'a'}"


def _package(version: str | None) -> Finding:
    if version is None:
        return Finding("package", False, "not installed", f"`pip install --no-deps {PACKAGE}=={KNOWN_VERSION}`")
    if version.split(".")[:2] != KNOWN_VERSION.split(".")[:2]:
        return Finding(
            "package", False, f"{version}; expected 0.6.x", f"`pip install --no-deps {PACKAGE}=={KNOWN_VERSION}`"
        )
    return Finding("package", True, version)


def _gpu(capability: tuple[int, int] | None) -> Finding:
    if capability is None:
        return Finding("gpu", False, "torch sees no CUDA device", "the plain PyTorch operations run everywhere")
    found = f"compute capability {capability[0]}.{capability[1]}"
    if capability < LEAST_CAPABILITY:
        return Finding("gpu", False, f"{found}; expected 8.0 or later", "use the plain PyTorch operations")
    return Finding("gpu", True, found)


def _architectures(environ: Mapping[str, str], capability: tuple[int, int] | None) -> Finding:
    name, listed = "architectures", environ.get("FLASHINFER_CUDA_ARCH_LIST")
    try:
        found = architectures_of(environ, capability)
    except ValueError as error:
        wrong = f"FLASHINFER_CUDA_ARCH_LIST={listed!r}: {str(error)!r} is no architecture"
        return Finding(name, False, wrong, 'separate them by one space: "9.0 10.0", or unset it')
    if listed is None:
        return Finding(name, True, f"of this machine: {', '.join(found) or 'none'}")
    number = f"{capability[0]}{capability[1]}" if capability else ""
    if number and number not in [re.sub(r"\D", "", one) for one in found]:
        wrong = f"FLASHINFER_CUDA_ARCH_LIST={listed!r} lacks this GPU's {capability[0]}.{capability[1]}"  # type: ignore[index]
        return Finding(name, False, wrong, "add it, or unset the variable")
    return Finding(name, True, f"FLASHINFER_CUDA_ARCH_LIST: {', '.join(found)}")


def _home(environ: Mapping[str, str], home: str | None) -> Finding:
    if home is None:
        do = "install the CUDA toolkit, or set CUDA_HOME to the folder that holds bin/nvcc"
        return Finding("cuda toolkit", False, "no CUDA_HOME, no nvcc on PATH, no /usr/local/cuda", do)
    source = next((name for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)), "found")
    if os.pathsep in home:
        # Left by `export CUDA_HOME=$CUDA_HOME:/usr/local/cuda` and the like.
        right = next((part for part in home.split(os.pathsep) if (Path(part) / "bin" / "nvcc").exists()), None)
        do = f"export {source}={right}" if right else f"set {source} to one folder, the one that holds bin/nvcc"
        return Finding("cuda toolkit", False, f"{source}={home!r} has a colon, so it is no folder", do)
    if home != home.strip() or not Path(home).is_dir():
        return Finding("cuda toolkit", False, f"{source}={home!r} is no folder", f"correct or unset {source}")
    return Finding("cuda toolkit", True, f"{home} ({source})")


def _nvcc(environ: Mapping[str, str], home: str | None) -> Finding:
    compiler = environ.get("FLASHINFER_NVCC") or (f"{home}/bin/nvcc" if home else None)
    do = "install the toolkit's compiler (`apt install cuda-nvcc-13-0`, or the one of torch's CUDA version)"
    if compiler is None:
        return Finding("nvcc", False, "no CUDA toolkit", do)
    if not (Path(compiler).is_file() and os.access(compiler, os.X_OK)):
        return Finding("nvcc", False, f"{compiler} is not there or cannot be executed", do)
    try:
        told = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("nvcc", False, f"{compiler} --version fails: {error}", do)
    release = re.search(r"release (\d+)\.(\d+)", told)
    if release is None:
        return Finding("nvcc", False, f"{compiler} --version names no release", do)
    if int(release[1]) < 12:
        return Finding("nvcc", False, f"{compiler}: release {release[1]}.{release[2]}; expected 12 or later", do)
    return Finding("nvcc", True, f"{compiler}, release {release[1]}.{release[2]}")


def _tool(name: str, path: str, do: str) -> Finding:
    label = "ninja" if name == "ninja" else "c++ compiler"
    found = shutil.which(name, path=path)
    return Finding(label, True, found) if found else Finding(label, False, f"{name} is not on PATH", do)


def _cache(environ: Mapping[str, str], version: str | None, capability: tuple[int, int] | None) -> Finding:
    try:
        names = architectures_of(environ, capability)
    except ValueError:
        names = []
    if version is None or not names:
        return Finding("kernels", False, "cannot be looked up yet", "see the lines above")
    folder = cache_folder(environ, version, names)
    above = next(part for part in (folder, *folder.parents) if part.exists())
    if not (above.is_dir() and os.access(above, os.W_OK)):
        do = "set FLASHINFER_WORKSPACE_BASE to a folder that can be written"
        return Finding("cache folder", False, f"{folder}: {above} cannot be written", do)
    folders = [folder, *_shipped()]
    missing = [
        kernel
        for kernel, pattern in KERNELS.items()
        if not any(any(_compiled(one, pattern)) for one in folders)
        and not (kernel == "norm" and _norm_is_python(environ))
    ]
    if missing:
        return Finding("kernels", False, f"not compiled in {folder}: {', '.join(missing)}", BUILD)
    return Finding("kernels", True, f"compiled in {folder}")


def _shipped() -> list[Path]:
    """Where the package of ready-made kernels keeps them, if it is installed."""
    found = importlib.util.find_spec("flashinfer_jit_cache")
    return [] if found is None or found.origin is None else [Path(found.origin).parent / "jit_cache"]


def _norm_is_python(environ: Mapping[str, str]) -> bool:
    """With nvidia-cutlass-dsl, FlashInfer's norms are compiled in the process and leave no library."""
    return environ.get("FLASHINFER_USE_CUDA_NORM", "0") != "1" and importlib.util.find_spec("cutlass") is not None


def _compiled(folder: Path, pattern: str) -> Iterator[Path]:
    """Libraries of kernels whose names match."""
    if not folder.is_dir():
        return
    for part in folder.iterdir():
        if re.fullmatch(pattern, part.name) and (part / f"{part.name}.so").is_file():
            yield part
