from __future__ import annotations

import os
import shutil
import ssl
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from tailrace.owned import run_guarded
from tailrace.stand import java
from waiting import SECONDS

Program = Callable[[str], Path]


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine whose PATH has a shell and nothing else; returns the folder that is its PATH."""
    folder = tmp_path / "path"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


def make_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def answering(release: str, home: Path) -> str:
    """A shell script that answers as `java` of this release does."""
    return f"echo '    java.specification.version = {release}\n    java.home = {home}' >&2"


def run_java(home: Path, *arguments: str) -> str:
    result = run_guarded(
        [str(home / "bin" / "java"), *arguments], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    return result.stdout + result.stderr


@pytest.mark.usefixtures("no_java")
def test_without_java_a_runtime_is_fetched_that_takes_sparks_flag() -> None:
    home = java.java_home()
    printed = run_java(home, f"--add-modules={java.VECTOR_MODULE}", "-XshowSettings:properties", "-version")
    assert "java.specification.version = 21" in printed
    runtime = Path(printed.split("java.home = ")[1].splitlines()[0])
    assert os.access(runtime / "lib" / "jspawnhelper", os.X_OK), "Java could not start other programs"
    with pytest.raises(subprocess.CalledProcessError):
        run_java(runtime, f"--add-modules={java.VECTOR_MODULE}", "-version")


@pytest.mark.usefixtures("no_java")
def test_the_wrapper_passes_every_other_argument_unchanged() -> None:
    strange = "-Dstrange=two words 'and' \"quotes\" $HOME *"
    printed = run_java(java.java_home(), strange, "-XshowSettings:properties", "-version")
    assert f"    {strange.removeprefix('-D').replace('=', ' = ')}\n" in printed


@pytest.mark.usefixtures("no_java")
def test_the_fetched_runtime_trusts_what_the_machine_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An authority that only this machine knows is in the trust store that the runtime uses."""
    authority = trustme.CA(organization_name="An authority of this network")
    bundle = tmp_path / "bundle.pem"
    authority.cert_pem.write_to_path(str(bundle))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    home = java.java_home()
    try:
        printed = run_java(home, "-XshowSettings:properties", "-version")
        store = printed.split("javax.net.ssl.trustStore = ")[1].splitlines()[0]
        keytool = Path(printed.split("java.home = ")[1].splitlines()[0]) / "bin" / "keytool"
        listed = run_guarded(
            [keytool, "-list", "-v", "-keystore", store, "-storepass", java.TRUST_STORE_PASSWORD],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        ).stdout
        assert "Your keystore contains 1 entry" in listed
        assert "An authority of this network" in listed
    finally:
        shutil.rmtree(home)


def test_a_bundle_gives_each_certificate_once() -> None:
    first, second = (trustme.CA().cert_pem.bytes().decode() for _ in range(2))
    found = java.certificates_of(f"# a comment\n{first}\n{second}\n{first}")
    assert found == [ssl.PEM_cert_to_DER_cert(first), ssl.PEM_cert_to_DER_cert(second)]


@pytest.mark.parametrize("release", ["17", "21"])
def test_java_home_comes_before_path(
    release: str, no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tmp_path / "chosen"
    make_program(chosen / "bin" / "java", answering(release, chosen))
    make_program(no_java / "java", answering("17", tmp_path / "other"))
    monkeypatch.setenv("JAVA_HOME", str(chosen))
    assert java.java_home() == chosen


@pytest.mark.parametrize(
    "unfit",
    [
        pytest.param(answering("25", Path("/unfit")), id="too new"),
        pytest.param(answering("1.8", Path("/unfit")), id="too old"),
        pytest.param(f"{answering('17', Path('/unfit'))}; exit 1", id="refuses the flag"),
        pytest.param("echo not java", id="not java"),
    ],
)
def test_a_java_that_does_not_fit_is_passed_over(
    unfit: str, no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_program(tmp_path / "bin" / "java", unfit)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    on_path = tmp_path / "on-path"
    make_program(no_java / "java", answering("21", on_path))
    assert java.java_home() == on_path


def test_the_machines_own_java_is_used_when_it_fits() -> None:
    if not shutil.which("java") and not os.environ.get("JAVA_HOME"):
        pytest.skip("this machine has no Java of its own")
    home = java.java_home()
    assert (home / "bin" / "java").stat().st_mode & stat.S_IXUSR
    assert run_java(home, f"--add-modules={java.VECTOR_MODULE}", "-version")


def test_a_program_that_inherits_our_home_gets_the_same_home(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = java.java_home()
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home() == home
