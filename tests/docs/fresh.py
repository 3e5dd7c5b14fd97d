"""An environment of Python that has Polyplay with some of its extras, and nothing else: as `pip install` makes it, from
the packages that are installed here.
"""

from __future__ import annotations

import tomllib
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from docs import assemble


def make_environment(folder: Path, extras: set[str]) -> Path:
    """Its interpreter. Raises PackageNotFoundError: something is not installed here."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "polyplay.pth").write_text(f"{assemble.ROOT}\n")
    for name in packages(extras):
        found = metadata.distribution(name)
        for part in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / part).exists():
                (site / part).symlink_to(Path(str(found.locate_file(part))).resolve())
    return folder / "bin" / "python"


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
