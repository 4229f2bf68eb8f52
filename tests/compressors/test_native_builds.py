"""The native kernels under sanitizers, and for processors that have less."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gradwire
import pytest
from support.native_builds import build, compiler, cross_compiler, link, run

GXX = compiler("g++")
TESTS = Path(__file__).parent
ROOT = Path(gradwire.__file__).parent
STRICT = ("-O1", "-Wall", "-Wextra", "-Werror")
#: null pointers fault anyway, and sizes of objects need more optimization; checks of both take long to compile
SANITIZED = (
    *("-Og", "-g1", "-w", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"),
    *("-fno-sanitize=null,object-size", "-fno-sanitize-recover=all"),
)

needs_gxx = pytest.mark.skipif(GXX is None, reason="g++ is not installed")


@needs_gxx
def test_no_kernel_reads_or_writes_beyond_its_memory_or_relies_on_undefined_behaviour(tmp_path: Path) -> None:
    assert GXX
    library = tmp_path / "kernels.so"
    link(GXX, build(GXX, tmp_path, *SANITIZED), library, *SANITIZED)
    preload = [run(GXX, f"-print-file-name={name}").strip() for name in ("libasan.so", "libubsan.so")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not unlucky"]
        + [str(TESTS / f"test_native_{kind}.py") for kind in ("encoders", "selection", "coded", "decoders", "fuzz")],
        env=os.environ
        | {
            "GRADWIRE_KERNELS": str(library),
            "GRADWIRE_REQUIRE_NATIVE": "1",
            "LD_PRELOAD": " ".join(preload),
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
        cwd=TESTS.parents[1],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert " passed" in done.stdout or "100%" in done.stdout


def test_an_install_without_a_compiler_succeeds_and_has_no_library(tmp_path: Path) -> None:
    source, target, missing = tmp_path / "source", tmp_path / "target", "/nowhere/compiler"
    for name in run("git", "-C", str(ROOT), "ls-files").splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    run("env", f"CC={missing}", f"CXX={missing}", *pip, "--target", str(target), str(source))
    assert (target / "gradwire/compressors/kernels/native/library.py").is_file()
    assert not list(target.rglob("*.so"))


@needs_gxx
def test_the_plain_form_needs_no_avx(tmp_path: Path) -> None:
    assert GXX
    build(GXX, tmp_path, *STRICT, "-mno-avx", sources="forms/plain.cpp")
    assert "ymm" not in run("objdump", "-d", "--no-show-raw-insn", str(tmp_path / "plain.o"))


def test_all_sources_compile_for_aarch64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(tmp_path / "cache"))
    for path in build(cross_compiler("aarch64-linux-gnu"), tmp_path, *STRICT):
        assert path.read_bytes()[18:20] == b"\xb7\x00"  # the processor, in an ELF file


@pytest.mark.skipif(compiler("clang++") is None, reason="clang++ is not installed")
def test_all_sources_compile_with_clang(tmp_path: Path) -> None:
    build("clang++", tmp_path, *STRICT)
