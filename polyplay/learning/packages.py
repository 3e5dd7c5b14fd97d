"""Compiles functions of tensors ahead of time, in another process, and stores the compiled functions for later runs.

    make_fx → torch.export → AOTInductor → a package of 2 MB, which a run loads in 2 ms

A package is a compiled function in a file. The process that trains never imports torch's compiler, because the import
takes a second and 80 MB. A package is valid for one function, one set of shapes, one version of torch, one kind of
processor and one state of the code. The file's name is a hash of these five things.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import math
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyplay.core import platform, processes
from polyplay.core.compiled import call_address, compiled
from polyplay.core.machine import cxx_compiler
from polyplay.core.shared_memory import LINE, Semaphore

Function = Callable[..., tuple[Tensor, ...]]
Compiled = Callable[[list[Tensor]], list[Tensor]]  # a call empties the list of arguments
Shape = tuple[tuple[int, ...], torch.dtype]
LIMIT = 600.0  # most seconds to compile one package; longer counts as a failure
MOST = 100  # most packages in the folder; the least recently used are removed
COMMAND = (sys.executable, "-m", "polyplay.learning.packages")
TRIES = 5  # test calls of a new package
NODES = 10_000  # most operations of a function; this many take four minutes of CPU time to compile
PACKAGE = Path(__file__).parents[1]
NICE = 5  # niceness of the compiler; a higher one would starve the compiler if a run uses all cores


def packages_folder() -> Path:
    """Return the folder that holds all packages, in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "polyplay" / "compiled"


@cache
def _this_machine() -> bytes:
    """Return a hash of Python's and torch's versions, the processor's features and Polyplay's code."""
    digest = hashlib.sha256(f"{sys.version} {torch.__version__} {platform.cpu_features()}".encode())
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()


def _beside(modules: Iterable[str]) -> list[Path]:
    """Return the files of the given modules, and of all other loaded modules in the same folders."""
    files = {name: Path(file) for name, m in list(sys.modules.items()) if (file := vars(m).get("__file__"))}
    folders = {files[name].parent for name in modules if name in files}
    return sorted({path for path in files.values() if path.parent in folders and path.is_file()})


@dataclass(frozen=True)
class CompileJob:
    """A function to compile, and the shapes of its arguments.

    `make`: function without arguments, which returns the function to compile. The compiler process calls it.
    `shapes`: shape and type of each argument.
    """

    make: Callable[[], Function]
    shapes: tuple[Shape, ...]
    modules: tuple[str, ...] = ()  # names of the user's modules that the function uses

    def key(self) -> str:
        """Return the name of this job's package, a hash of everything that the package depends on."""
        digest = hashlib.sha256(_this_machine())
        try:
            digest.update(self.packed(fast=True))
        except Exception:  # fails for classes that refer to themselves and are pickled by value
            digest.update(self.packed())
        for path in _beside(self.modules):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:32]

    def packed(self, fast: bool = False) -> bytes:
        """Return the pickled job. If `fast`, write repeated objects in full, so that equal jobs give equal bytes."""
        import cloudpickle

        file = io.BytesIO()
        pickler = cloudpickle.Pickler(file)
        pickler.fast = fast
        pickler.dump((self.make, self.shapes))
        return file.getvalue()


class Package:
    """A compiled function, stored in a file. `begin` compiles it in another process, and `load` loads it from the file.
    Compiling and loading raise no exceptions. If one of them fails, `failure` holds the reason.
    """

    def __init__(self, job: CompileJob):
        self.failure, self.began = "", math.inf
        self.process: subprocess.Popen[bytes] | None = None
        self.log: Any = None
        try:
            self.path = packages_folder() / f"{job.key()}.pt2"
            self.job = job
        except Exception as e:
            self.failure = why_failed(e)

    def begin(self) -> None:
        """Start a process that compiles the package, unless the package exists or another process is compiling it."""
        if self.process is not None or self.failure:
            return
        if platform.WINDOWS:
            self.failure = "Windows passes no lock to the compiler's process"
            return
        if (compiler := cxx_compiler()) is None:
            self.failure = "there is no C++ compiler: install g++"
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path.with_suffix(".lock"), "wb") as lock:
                if platform.lock(lock.fileno()) and not self.path.exists():
                    self._start(compiler, lock.fileno())
        except Exception as e:
            self.failure = why_failed(e)

    def _start(self, compiler: str, lock: int) -> None:
        self.began, self.log = time.monotonic(), tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        data, path = self.job.packed(), os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
        one = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        self.process = subprocess.Popen(
            [*COMMAND, str(self.path), str(len(data))],
            env={**os.environ, **one, "PYTHONPATH": path, "CXX": compiler},
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
            pass_fds=[lock],  # holds the lock until this process ends
        )
        self.process.stdin.write(data)  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]

    @property
    def done(self) -> bool:
        """Whether compiling has ended: the package exists, or `failure` holds the reason."""
        if self.process is None:
            return bool(self.failure) or self.path.exists()
        if self.process.poll() is None:
            if time.monotonic() - self.began < LIMIT:
                return False
            self.failure = f"the compiler took longer than {LIMIT:g} s"
        elif not self.path.exists():
            self.log.seek(0)
            lines, code = self.log.read().decode(errors="replace").strip().splitlines(), self.process.returncode
            self.failure = lines[-1][:500] if lines and code > 0 else f"the compiler {processes.ending_text(code)}"
        self.close()
        return True

    def load(self) -> Compiled | None:
        """Return the compiled function, or None if compiling or loading failed."""
        if self.failure:
            return None
        try:
            os.utime(self.path)  # mark it as recently used
            return _load(str(self.path))
        except Exception as e:
            self.failure = why_failed(e)
            self.path.unlink(missing_ok=True)
            return None

    def close(self) -> None:
        """End the compiler process, and all processes that it started."""
        if self.process is None:
            return
        with contextlib.suppress(OSError):
            platform.kill_group(self.process.pid)
        self.process.wait()
        with contextlib.suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]
        self.log.close()
        self.process = None


def why_failed(e: BaseException) -> str:
    """Describe an exception in one line, which ends with the file and line number of the code that failed."""
    text = (str(e).strip() or "no more is known").splitlines()[0]
    libraries = (os.path.dirname(os.__file__) + os.sep, os.path.dirname(torch.__file__) + os.sep, "<")
    frames = [f for f in traceback.extract_tb(e.__traceback__) if not f.filename.startswith(libraries)]
    own = [f for f in frames if not f.filename.startswith(str(PACKAGE))]
    where = "".join(f" ({os.path.basename(f.filename)}:{f.lineno})" for f in (own or frames)[-1:])
    return f"{type(e).__name__}: {text[:300]}{where}"


def _load(path: str) -> Compiled:
    """Load a package by AOTInductor's private loader. The public loader imports torch's compiler (1.6 s, 78 MB)."""
    try:
        loader = torch._C._aoti.AOTIModelPackageLoader(path, "model", False, 1, -1)
    except (AttributeError, TypeError):  # another version of torch
        package = torch._inductor.aoti_load_package(path)
        return lambda given: list(package(*given))
    call: Compiled = loader.boxed_run
    return partial(_flushed, call)


def _flushed(call: Compiled, given: list[Tensor]) -> list[Tensor]:
    """Call a function with denormal floats rounded to 0, because computing with denormal floats is slow."""
    torch.set_flush_denormal(True)  # for this thread; where gradients stay 0, an optimizer's averages become denormal
    try:
        return call(given)
    finally:
        torch.set_flush_denormal(False)


# Calls of a package's function in another thread, while this thread acts. AOTInductor's loader holds Python's global
# interpreter lock, so a compiled loop calls the package's library directly, by AOTInductor's C interface.


# indices of the words that both threads share: two semaphores, numbers, addresses of functions
STARTED, DONE, STOP, FAILED, CALLS, KIND, TRY, WAIT, POST, COPY = range(10)
# indices of a package's words: functions of its library, its model, its numbers of arguments, copies and results
ALIAS, DATA, FREE, RUN, MODEL, INPUTS, COPIES, OUTPUTS = range(8)
SPINS = 200_000  # checks of a semaphore (0.3 ms) before a thread sleeps; waking a thread takes 50 µs


@compiled
def _spin(words: np.ndarray, semaphore: int) -> bool:
    """Try to decrement a semaphore, up to SPINS times. Return whether this succeeded."""
    for _ in range(SPINS):  # noqa: SIM110 - a loop
        if call_address(words[TRY], (words[semaphore],)) == 0:
            return True
    return False


@compiled
def _serve(words: np.ndarray, kinds: np.ndarray, given: np.ndarray, copies: np.ndarray, results: np.ndarray) -> None:
    """Run the loop of an UpdateThread, until words[STOP] is set. Each time the semaphore STARTED is posted, make
    words[CALLS] calls of the package with index words[KIND], and post the semaphore DONE after each call. Arrays are
    padded with 0.

    `kinds`: words of each package, [packages, 8], indexed by ALIAS … OUTPUTS.
    `given`: handles of the arguments, [packages, calls, n].
    `copies`: copies to make before the first call, [packages, m, 3]: destination, source, number of bytes.
    `results`: where to copy each call's results, [packages, calls, k, 2]: destination, number of bytes.
    """
    handles, made, at = np.empty(given.shape[2], np.int64), np.zeros(results.shape[2], np.int64), np.zeros(1, np.int64)
    while True:
        if not _spin(words, STARTED):
            while call_address(words[WAIT], (words[STARTED],)) != 0:  # a signal interrupted the wait
                pass
        if words[STOP]:
            return
        kind = words[KIND]
        own = kinds[kind]
        for i in range(own[COPIES]):
            call_address(words[COPY], (copies[kind, i, 0], copies[kind, i, 1], copies[kind, i, 2]))
        failed, inputs = 0, (handles.ctypes.data, own[INPUTS])
        for k in range(words[CALLS]):
            for i in range(own[INPUTS]):  # a call uses up its handles
                failed |= call_address(own[ALIAS], (given[kind, k, i], handles.ctypes.data + 8 * i))
            if not failed:
                failed = call_address(own[RUN], (own[MODEL], *inputs, made.ctypes.data, own[OUTPUTS], 0, 0))
            for i in range(0 if failed else own[OUTPUTS]):
                call_address(own[DATA], (made[i], at.ctypes.data))
                call_address(words[COPY], (results[kind, k, i, 0], at[0], results[kind, k, i, 1]))
                call_address(own[FREE], (made[i],))
            words[FAILED] = failed
            call_address(words[POST], (words[DONE],))


class UpdateThread:
    """A thread that makes the calls of several BackgroundCalls, one at a time."""

    def __init__(self) -> None:
        self.calls = list[BackgroundCall]()
        self._cells = np.zeros((2, LINE), np.uint8)
        self.started, self.done = (Semaphore(cell, create=True) for cell in self._cells)
        semaphores = (int(cell.ctypes.data) for cell in self._cells)
        self.words = np.array([*semaphores, 0, 0, 0, 0, *map(_address_of, platform.C_CALLS)], np.int64)
        self.thread: threading.Thread | None = None

    def add(self, call: BackgroundCall) -> int:
        """Register a BackgroundCall with this thread, and return its index."""
        self.stop()
        self.calls.append(call)
        self._tables = [_padded(each) for each in zip(*(call.tables for call in self.calls), strict=True)]
        self.words[STOP] = 1
        self.started.post()
        _serve(self.words, *self._tables)  # compiles the loop, and returns at once
        self.words[STOP], threads = 0, torch.get_num_threads()
        self.thread = threading.Thread(target=self._run, name="update", daemon=True)
        self.thread.start()
        self.wait()
        torch.set_num_threads(threads)  # the new thread's setting applies to later threads too
        return len(self.calls) - 1

    def _run(self) -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)  # see _flushed
        self.done.post()
        _serve(self.words, *self._tables)

    def wait(self) -> None:
        """Wait for the oldest call that has not been waited for. Raises RuntimeError if it failed."""
        while not (_spin(self.words, DONE) or self.done.wait(1.0)):
            if self.thread is None or not self.thread.is_alive():
                raise RuntimeError("the thread of a compiled update ended")
        if self.words[FAILED]:
            raise RuntimeError("a compiled update failed")

    def stop(self) -> None:
        """End the thread. If a call is running, let it finish first."""
        if self.thread is not None:
            self.words[STOP] = 1
            self.started.post()
            self.thread.join()
            self.thread = None


class BackgroundCall:
    """Calls a package's function in another thread, on tensors at fixed addresses. `start` starts one or more calls,
    and each `wait` waits for the next of them.

    `given`: arguments of each call.
    `results`: contiguous tensors for the results of each call.
    `copies`: pairs (destination, source) of tensors, which each `start` copies before the first call.
    `thread`: the thread that calls the function. If None, a new thread is started.

    Raises ValueError, OSError or AttributeError if the package, the platform or torch does not support such calls.
    """

    def __init__(
        self,
        package: Path,
        given: list[list[Tensor]],
        results: list[list[Tensor]],
        copies: Iterable[tuple[Tensor, Tensor]] = (),
        thread: UpdateThread | None = None,
    ):
        if not platform.C_CALLS:
            raise OSError("the portable way has no semaphores for compiled loops")
        if not all(x.is_contiguous() for each in results for x in each):
            raise ValueError("results that are views")
        self.given, self.results, self.copies = given, results, list(copies)
        self._library, self._model = library, model = _library_of(package), ctypes.c_void_p()
        if library.AOTInductorModelContainerCreateWithDevice(ctypes.byref(model), ctypes.c_size_t(1), b"cpu", None):
            raise ValueError("the package's library gives no model")
        functions = [
            *(library.aoti_torch_new_tensor_handle, library.aoti_torch_get_data_ptr),
            *(library.aoti_torch_delete_tensor_object, library.AOTInductorModelContainerRunSingleThreaded),
        ]
        counts = len(given[0]), len(self.copies), len(results[0])
        self.tables = (
            np.array([*map(_address_of, functions), model.value, *counts], np.int64),
            np.array([[_handle_of(x) for x in each] for each in given], np.int64),
            np.array([(x.data_ptr(), y.data_ptr(), x.nbytes) for x, y in self.copies], np.int64).reshape(-1, 3),
            np.array([[(x.data_ptr(), x.nbytes) for x in each] for each in results], np.int64),
        )
        self.thread = thread or UpdateThread()
        self.kind = self.thread.add(self)

    def start(self, calls: int = 1) -> None:
        """Start `calls` calls in the thread, and return immediately."""
        self.thread.words[CALLS], self.thread.words[KIND] = calls, self.kind
        self.thread.started.post()

    def wait(self) -> None:
        """Wait for the results of the oldest call that has not been waited for. Raises RuntimeError if it failed."""
        self.thread.wait()

    def close(self) -> None:
        """End the thread, after the running call, and delete the package's model."""
        self.thread.stop()
        for handle in self.tables[1].ravel().tolist():
            self._library.aoti_torch_delete_tensor_object(ctypes.c_void_p(handle))
        self._library.AOTInductorModelContainerDelete(self._model)


def _padded(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Stack the arrays into one array. Smaller arrays are padded with 0."""
    found = np.zeros((len(arrays), *map(max, *(x.shape for x in arrays), arrays[0].shape)), np.int64)
    for own, x in zip(found, arrays, strict=True):
        own[tuple(map(slice, x.shape))] = x
    return found


def _address_of(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _library_of(package: Path) -> ctypes.CDLL:
    """Load the shared library in a package. Raises ValueError if the package has operations that C cannot call."""
    with zipfile.ZipFile(package) as files, tempfile.TemporaryDirectory() as folder:
        names = files.namelist()
        if any(name.endswith(".json") and not name.endswith("_metadata.json") for name in names):
            raise ValueError("operations without a C interface")
        (name,) = (name for name in names if name.endswith(".so"))
        return ctypes.CDLL(files.extract(name, folder))


_address_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _handle_of(x: Tensor) -> int:
    """Return a new handle of a tensor for AOTInductor's C interface. The caller must delete the handle."""
    (capsule,) = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([x])
    return int(_address_in(capsule, None))


def arguments(shapes: Iterable[Shape]) -> list[Tensor]:
    """Return tensors of these shapes and types, for tracing. Integers are 0, so that every integer is a valid index.
    Floats are 1, so that no division is by 0.
    """
    return [torch.full(shape, dtype.is_floating_point, dtype=dtype) for shape, dtype in shapes]


# The process that compiles.


def trace(function: Function, given: Sequence[Tensor]) -> Any:
    """Trace the function with the arguments `given`, and return it as a graph of torch's operations."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad():
        return make_fx(function)(*given)


def build_package(job: CompileJob, place: Path) -> None:
    """Compile a job, write the package to the path `place`, and test it. Raises ValueError for large functions."""
    given = arguments(job.shapes)
    graph = trace(job.make(), given)
    if (n := len(graph.graph.nodes)) > NODES:
        raise ValueError(f"too large to compile: {n:,} operations, at most {NODES:,}")
    with torch.no_grad():
        program = torch.export.export(graph, tuple(given))
        torch._inductor.aoti_compile_and_package(program, package_path=str(place))
    call = _load(str(place))
    for _ in range(TRIES):  # a crash must end this process, not the one that trains
        call(arguments(job.shapes))


def main(path: Path, length: int) -> None:
    """Read a pickled job of `length` bytes from stdin, compile it, and write the package to `path`."""
    data, parent = sys.stdin.buffer.read(length), sys.stdin.fileno()
    platform.kill_when_closed(parent, -os.getpid())
    if platform.readable([parent], 0.0):  # the process that trains has ended already
        return
    platform.set_title("compiler")
    platform.be_nicer(NICE)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="compiling-", dir=path.parent) as place:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = place
        try:
            make, shapes = pickle.loads(data)
            build_package(CompileJob(make, shapes), Path(place) / "package.pt2")
        except Exception as e:
            traceback.print_exc()
            sys.exit(why_failed(e))
        platform.replace(Path(place) / "package.pt2", path)
    _tidy(path.parent)


def _tidy(folder: Path) -> None:
    """Remove the least recently used packages, and the temporary folders of killed compilers."""
    old = sorted(folder.glob("*.pt2"), key=lambda p: p.stat().st_mtime)[:-MOST]
    with contextlib.suppress(OSError):
        for path in old:
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)
        for path in folder.glob("compiling-*"):
            if time.time() - path.stat().st_mtime > LIMIT:
                shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
