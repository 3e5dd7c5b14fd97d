"""An environment of Python that has Polyplay's wheel with some of its extras, and nothing else: as `pip install` makes
it, from the packages that are installed here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from docs import assemble

PARTS = ("*.*", "LICENSE", "polyplay/**/*", "docs/**/*.md", "docs/**/*.ipynb", "bench/results/**/*.md", "examples/*.py")


def build(folder: Path, kind: str = "wheel", settings: str = "") -> Path:
    """The tree's wheel or sdist, as `make dist` builds it, but with the setuptools of this environment."""
    source = folder / "source"
    for path in {path for part in PARTS for path in assemble.ROOT.glob(part) if path.is_file()}:
        if not {"__pycache__", "build", "dist"} & {*path.relative_to(assemble.ROOT).parts}:
            there = source / path.relative_to(assemble.ROOT)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, there)
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}('..', {settings}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


def make_environment(folder: Path, extras: set[str], wheel: Path) -> Path:
    """Its interpreter. Raises PackageNotFoundError: something is not installed here."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    (site,) = (folder / "lib").glob("python*/site-packages")
    for name in packages(extras):
        found = metadata.distribution(name)
        for part in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / part).exists():
                (site / part).symlink_to(Path(str(found.locate_file(part))).resolve())
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index", str(wheel)]
    own = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}  # else pip finds Polyplay installed
    subprocess.run(pip, check=True, timeout=120, env=own)
    return python


def packages(extras: set[str]) -> set[str]:
    """Polyplay's packages with these extras, and all that they need in turn."""
    project = tomllib.loads((assemble.ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    open_, found = (
        [(r.name, extra) for r in map(Requirement, lines) for extra in ("", *r.extras)],
        set[tuple[str, str]](),
    )
    while open_:
        name, extra = one = open_.pop()
        if one in found:
            continue
        found.add(one)
        needed = (Requirement(line) for line in metadata.requires(name) or ())
        needed = (r for r in needed if r.marker is None or r.marker.evaluate({"extra": extra}))
        open_ += [(r.name, other) for r in needed for other in ("", *r.extras)]
    return {name for name, _ in found}
