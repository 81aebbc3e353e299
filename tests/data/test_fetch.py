"""Fetching, from a server of this machine: every fault leaves all or nothing."""

import contextlib
import errno
import functools
import gzip
import hashlib
import http.server
import io
import os
import re
import resource
import signal
import tarfile
import threading
import time
import tomllib
from collections import namedtuple
from pathlib import Path

import pytest
from torchvision import datasets as tv

from fedlib import data
from fedlib.data import DataError, download
from fedlib.data import unpack as unpacking
from fedlib.data.access import absent
from fedlib.data.types import Remote
from fedlib.support.paths import ROOT
from tests.data.test_data import assert_tiny_idx, write_batches
from tests.on_disk import TEST_Y, idx, idx_files, unpack, write_idx

PAGE = b"<!DOCTYPE html>\n<html>quota exceeded</html>"
BODY = bytes(range(256)) * 40


def test_addresses_and_hashes_are_torchvisions():
    for name, origin in (("mnist", tv.MNIST), ("fashion", tv.FashionMNIST)):
        found = data.DATASETS[name].downloads
        files = [(Path(remote.path).name, remote.hash) for remote in found]
        assert files == [(file, f"md5:{md5}") for file, md5 in origin.resources]
        for remote, (file, _) in zip(found, origin.resources, strict=True):
            # whose order changed from one torchvision to the next
            assert {*remote.urls} == {mirror + file for mirror in origin.mirrors}
    for name, origin in (("cifar10", tv.CIFAR10), ("cifar100", tv.CIFAR100)):
        entry = data.DATASETS[name]
        wanted = (origin.filename, (origin.url,), f"md5:{origin.tgz_md5}", None, True)
        assert entry.downloads == (wanted,)
        assert entry.place.startswith(f"{origin.base_folder}/")
    for name in ("emnist", "emnist_byclass"):
        (remote,) = data.DATASETS[name].downloads
        assert (remote.urls, remote.hash) == ((tv.EMNIST.url,), f"md5:{tv.EMNIST.md5}")
    for name, origin in (("svhn", tv.SVHN), ("usps", tv.USPS)):
        found = data.DATASETS[name].downloads
        assert [(*r.urls, Path(r.path).name, r.hash) for r in found] == [
            (url, file, f"md5:{md5}")
            for url, file, md5 in (origin.split_list[s] for s in ("train", "test"))
        ]


DROP, FLOOD = b".", b"." * 4096
PART = [("Content-Range", "bytes 100-199/10240"), ("Content-Length", "100")]
LIES = {  # status, headers, body
    "part": (206, PART, BODY[100:200]),
    "part of it": (206, [("Content-Range", "bytes 0-99/10240")], BODY[:100]),
    "part of nothing": (206, [], BODY),
    "text for a length": (200, [("Content-Length", "many")], BODY),
    "another length": (200, [("Content-Length", "1, 2")], BODY),
    "a negative length": (200, [("Content-Length", "-5")], BODY),
    "a vast length": (200, [("Content-Length", "1" + "0" * 30)], BODY),
    "a long length": (200, [("Content-Length", "9" * 5000)], BODY),
    "a large length": (200, [("Content-Length", "1" + "0" * 17)], BODY),
    "drops": (200, [("Content-Length", "10240")], DROP),
    "drops without end": (200, [], DROP),
    "a flood": (200, [], FLOOD),
    "a circle": (302, [("Location", "file.bin")], b""),
    "nowhere": (302, [("Location", "http://[")], b""),
    "a file": (302, [("Location", "file:///etc/passwd")], b""),
}


class Server(http.server.BaseHTTPRequestHandler):
    """Serve ``/<mirror>/<file>``, each mirror with its fault."""

    files: dict[str, bytes]
    faults: dict[str, str]  # mirror -> what it does wrong
    asked: list[tuple[str, str | None, int]]  # path, range, bytes sent
    ended: threading.Event  # hanging connections end with it
    written: Path  # where the file arrives, of the mirror that interrupts

    def do_GET(self) -> None:
        mirror, _, name = self.path[1:].partition("/")
        fault, content = self.faults.get(mirror, ""), self.files[name]
        time.sleep(0.1 * (fault == "slow"))
        if fault == "down":
            self.asked.append((self.path, self.headers["Range"], 0))
            self.send_error(503)
            return
        if fault.startswith("page"):
            content = PAGE
        if fault == "other":
            content = content[::-1]
        if fault in LIES:
            self.asked.append((self.path, self.headers["Range"], 0))
            self.lie(*LIES[fault])
            return
        start = self.start(fault, content)
        body = content[start:]
        half = fault in ("cut", "cut chunks", "hang", "ctrl-c")
        sent = body[: len(body) // 2] if half else body
        self.asked.append((self.path, self.headers["Range"], len(sent)))
        kind = "text/html" if fault == "page" else "application/octet-stream"
        self.send_header("Content-Type", kind)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        if fault == "cut chunks":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(sent), sent))
            return
        if fault != "no length":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(sent)
        if fault == "ctrl-c":
            while not list(self.written.glob("*.part")):
                time.sleep(0.01)
            time.sleep(0.5)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        if fault in ("hang", "ctrl-c"):
            self.ended.wait(20)

    def lie(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Send whatever, and then the same for ever, or drop by drop."""
        self.send_response(status)
        for header in headers:
            self.send_header(*header)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)
            while body in (DROP, FLOOD) and not self.ended.wait(0.05 * (body == DROP)):
                self.wfile.write(body)

    def start(self, fault: str, content: bytes) -> int:
        """Send the status; return the first byte to send."""
        found = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        tag = self.headers["If-Range"]
        if tag and tag.strip('"') != hashlib.sha256(content).hexdigest():
            found = None
        if not found or fault == "no range":
            self.send_response(200)
            return 0
        start = int(found[1])
        if start >= len(content):
            self.send_response(416)
            return len(content)
        self.send_response(206)
        total = len(content) + (fault == "other total")
        start -= fault == "other start"
        self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{total}")
        return start

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    """Return the handler of a running server, with its address in ``root``."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("FEDLIB_OFFLINE", "FEDLIB_DATA"):
        monkeypatch.delenv(name, raising=False)
    ended = threading.Event()
    facts = {"files": {"file.bin": BODY}, "faults": {}, "asked": [], "ended": ended}
    handler = type("Handler", (Server,), facts)
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.root = f"http://127.0.0.1:{running.server_port}"
    thread = threading.Thread(target=running.serve_forever, args=(0.02,))
    thread.start()
    yield handler
    ended.set()
    running.shutdown()
    thread.join()
    running.server_close()


def md5(content: bytes) -> str:
    return "md5:" + hashlib.md5(content, usedforsecurity=False).hexdigest()


def remote(server, path="file.bin", mirrors=("a",), **other) -> Remote:
    """Return a file of the server as it is now, with its hash."""
    name = path.rpartition("/")[2]
    urls = tuple(f"{server.root}/{mirror}/{name}" for mirror in mirrors)
    other.setdefault("hash", md5(server.files[name]))
    return Remote(path, urls, **other)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# one file


def test_the_first_mirror_that_has_the_file(server, tmp_path, caplog):
    server.faults["a"] = "down"
    used = download.download(
        remote(server, mirrors=("a", "b", "c")), tmp_path / "x" / "file.bin"
    )
    assert used == f"{server.root}/b/file.bin"
    assert (tmp_path / "x" / "file.bin").read_bytes() == BODY
    assert names(tmp_path / "x") == ["file.bin"]
    assert [path for path, *_ in server.asked] == ["/a/file.bin", "/b/file.bin"]
    (line,) = caplog.messages
    assert line == (
        f"{server.root}/a/file.bin: 503 Service Unavailable; "
        f"trying {server.root}/b/file.bin"
    )


FAULTS = {
    "down": "503 Service Unavailable; nothing kept",
    "other": f"has md5 [0-9a-f]+ instead of {md5(BODY)[4:]}; nothing kept",
    "page": "answers with a web page instead of the file; .*; nothing kept",
    "page as data": "answers with a web page instead .*; nothing kept",
    "cut": "connection cut off after 5120 of 10240 bytes; 5.1 kB are kept",
    "cut chunks": "connection failed or broken .*; 5.1 kB are kept",
    "hang": "no answer for 0.3 s; 5.1 kB are kept for the next try",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_and_the_next_try_works(server, tmp_path, fault):
    wanted, path = remote(server), tmp_path / "file.bin"
    server.faults["a"] = fault
    with pytest.raises(DataError, match=f"file.bin: download failed.*{FAULTS[fault]}"):
        download.download(wanted, path, timeout=0.3)
    kept = fault in ("cut", "cut chunks", "hang")
    assert (tmp_path / "file.bin.part").exists() == kept
    assert not path.exists()
    server.faults.clear()
    download.download(wanted, path)
    assert path.read_bytes() == BODY
    assert names(tmp_path) == ["file.bin"]
    span, sent = server.asked[-1][1:]
    assert (span, sent) == (("bytes=5120-", 5120) if kept else (None, 10240))


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("known", ["size", "hash"])
def test_a_mirror_that_lies_does_not_stop_the_good_ones(
    server, tmp_path, lie, known, monkeypatch
):
    """Bytes and time are bounded, and every failure of a mirror tries the next."""
    monkeypatch.setattr(download, "MOST_BYTES", 2**20)
    server.faults["a"] = lie
    facts = {"size": len(BODY)} if known == "size" else {}
    wanted, path = remote(server, mirrors=("a", "b"), **facts), tmp_path / "file.bin"
    begun = time.monotonic()
    used = download.download(wanted, path, timeout=0.5)
    assert used == f"{server.root}/b/file.bin"
    assert path.read_bytes() == BODY
    assert names(tmp_path) == ["file.bin"]
    assert time.monotonic() - begun < 20


def test_a_part_is_refused_where_nothing_is_continued(server, tmp_path):
    """Without a hash or a version what is there is not gone on from."""
    (tmp_path / "file.bin.part").write_bytes(BODY[:100])
    server.faults["a"] = "part"
    with pytest.raises(DataError, match="answers with a part, which nobody has asked"):
        download.download(remote(server, hash=""), tmp_path / "file.bin")
    assert server.asked[-1][1] is None


def test_each_file_has_a_hash_or_says_that_it_has_none():
    for name, entry in data.DATASETS.items():
        told = absent(name)
        for remote in entry.downloads:
            kind, _, digits = remote.hash.partition(":")
            size = {"md5": 32, "sha256": 64, "": 0}[kind]
            assert re.fullmatch(f"[0-9a-f]{{{size}}}", digits), remote.path
            shown = remote.hash or "no hash is published"
            assert f"{remote.path} ({shown}" in told


@pytest.mark.parametrize("known", ["hash", "size", "neither"])
def test_a_cut_file_is_never_taken_for_whole(server, tmp_path, known):
    facts = {"hash": {}, "size": {"hash": "", "size": 10240}, "neither": {"hash": ""}}
    server.faults["a"] = "cut"
    with pytest.raises(DataError, match="5.1 kB are kept"):
        download.download(remote(server, **facts[known]), tmp_path / "file.bin")
    assert not (tmp_path / "file.bin").exists()


def test_another_size_is_refused_before_it_is_fetched(server, tmp_path):
    with pytest.raises(DataError, match="has 10240 bytes instead of 7; nothing kept"):
        download.download(remote(server, hash="", size=7), tmp_path / "file.bin")


def test_the_next_mirror_continues(server, tmp_path):
    server.faults["a"] = "cut"
    download.download(remote(server, mirrors=("a", "b")), tmp_path / "file.bin")
    assert server.asked[-1] == ("/b/file.bin", "bytes=5120-", 5120)
    assert (tmp_path / "file.bin").read_bytes() == BODY


@pytest.mark.parametrize("fault", ["no range", "other start", "other total"])
def test_a_server_without_resume_starts_again(server, tmp_path, fault):
    (tmp_path / "file.bin.part").write_bytes(BODY[:100])
    server.faults["a"] = fault
    download.download(remote(server, size=len(BODY)), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == BODY
    assert server.asked[0][1] == "bytes=100-"
    assert server.asked[-1][2] == len(BODY)


def test_a_server_that_does_not_say_the_size(server, tmp_path):
    server.faults["a"] = "no length"
    download.download(remote(server), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == BODY


@pytest.mark.parametrize("left", [BODY[::-1][:100], BODY + b"more", BODY[::-1]])
def test_what_does_not_fit_is_thrown_away(server, tmp_path, left):
    (tmp_path / "file.bin.part").write_bytes(left)
    download.download(remote(server, size=len(BODY)), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == BODY
    assert names(tmp_path) == ["file.bin"]


@pytest.mark.parametrize("changed", [False, True])
def test_without_a_hash_only_the_same_version_is_continued(server, tmp_path, changed):
    wanted = remote(server, hash="")
    server.faults["a"] = "cut"
    with pytest.raises(DataError, match="kept for the next try"):
        download.download(wanted, tmp_path / "file.bin")
    server.faults.clear()
    if changed:
        server.files["file.bin"] = BODY[::-1]
    download.download(wanted, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == server.files["file.bin"]
    assert server.asked[-1][2] == (10240 if changed else 5120)
    assert names(tmp_path) == ["file.bin"]


@pytest.fixture
def heard():
    """Hear Ctrl-C, which a shell's background jobs are started deaf to."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_ctrl_c_keeps_what_has_arrived(server, tmp_path):
    server.faults["a"], server.written = "ctrl-c", tmp_path
    with pytest.raises(KeyboardInterrupt):
        download.download(remote(server), tmp_path / "file.bin")
    assert names(tmp_path) == ["file.bin.part", "file.bin.part.etag"]
    server.faults.clear()
    download.download(remote(server), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == BODY
    assert server.asked[-1][1:] == ("bytes=5120-", 5120)


def test_nothing_is_asked_for_a_finished_part(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(BODY)
    download.download(remote(server, size=len(BODY)), tmp_path / "file.bin")
    assert server.asked == []


# a full disk


@contextlib.contextmanager
def file_limit(size: int):
    """Let no file of this process grow beyond a size."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def full_disk():
    """Let every write of a download end like on a full disk."""

    class Full(io.FileIO):
        def write(self, chunk):
            super().write(chunk[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "open", Full, raising=False)
        yield


@pytest.mark.parametrize("full", [full_disk, lambda: file_limit(1000)])
def test_a_full_disk_is_told_and_nothing_is_kept(server, tmp_path, full):
    wanted = remote(server, mirrors=("a", "b"))
    told = (
        rf"file.bin: (No space left|File too large).*: 10.2 kB are needed in {tmp_path}"
        ", .*B are free.*FEDLIB_CACHE"
    )
    with full(), pytest.raises(DataError, match=told):
        download.download(wanted, tmp_path / "file.bin")
    assert [n for n in names(tmp_path) if not n.endswith("etag")] == []
    assert len(server.asked) == 1  # another mirror would not help
    download.download(wanted, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == BODY


def test_room_is_looked_for_first(server, tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")(10_000)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DataError, match=r"10.2 kB are needed .* 10.0 kB are free"):
        download.download(remote(server), tmp_path / "file.bin")
    (tmp_path / "file.bin.part").write_bytes(BODY[:5000])  # the rest has room
    download.download(remote(server), tmp_path / "file.bin")


# a data set of four files


@pytest.fixture
def mnist(server, monkeypatch):
    """Serve a tiny MNIST from two mirrors, the first one down."""
    server.files |= {f"{k}.gz": gzip.compress(v) for k, v in idx_files().items()}
    server.faults["down"] = "down"

    def point(*mirrors: str) -> None:
        files = [f"MNIST/raw/{name}.gz" for name in idx_files()]
        remotes = tuple(remote(server, path, mirrors) for path in files)
        entry = data.DATASETS["mnist"]._replace(downloads=remotes)
        monkeypatch.setitem(data.DATASETS, "mnist", entry)

    point("down", "good")
    server.point = point
    return server


def shown(folder: Path) -> list[str]:
    """Return what a person sees in a folder."""
    return [name for name in names(folder) if not name.startswith(".")]


def test_fetch_takes_the_next_mirror_when_one_is_down(mnist, own_cache, caplog):
    assert data.fetch("mnist") == own_cache / "data"
    (line,) = caplog.messages  # the other files come from the mirror that works
    assert "503 Service Unavailable; trying" in line
    assert shown(own_cache / "data") == ["MNIST"]
    assert_tiny_idx(data.load("mnist"))


LAST = "t10k-labels-idx1-ubyte.gz"  # the other files arrive


@pytest.mark.parametrize("fault", ["cut", "other", "down", "page", "hang"])
def test_a_failed_fetch_shows_nothing_and_the_next_one_works(mnist, own_cache, fault):
    mnist.point("good")
    good = mnist.files[LAST]
    mnist.files[LAST] = gzip.compress(idx(TEST_Y[::-1].copy()))
    if fault != "other":
        mnist.faults["good"] = fault
    with pytest.raises(DataError, match="MNIST/raw/.*: download failed"):
        data.fetch("mnist", timeout=0.3)
    assert shown(own_cache / "data") == []
    with pytest.raises(DataError, match="MNIST is not here"):
        data.load("mnist")
    mnist.files[LAST] = good
    mnist.faults.clear()
    done = len(mnist.asked)
    data.fetch("mnist")
    assert_tiny_idx(data.load("mnist"))
    if fault == "other":
        assert [path for path, *_ in mnist.asked[done:]] == [f"/good/{LAST}"]
    assert names(own_cache / "data" / ".partial") == ["mnist.lock"]


def test_what_is_here_is_not_fetched_again(mnist, own_cache, capsys):
    data.fetch("mnist")
    before, asked = data.load("mnist").fingerprint, len(mnist.asked)
    mnist.faults["good"] = "down"
    assert data.fetch("mnist", echo=print) == own_cache / "data"
    told = f"MNIST is in {own_cache / 'data'} already; nothing was downloaded\n"
    assert capsys.readouterr().out == told
    assert len(mnist.asked) == asked
    assert data.load("mnist").fingerprint == before


def test_a_damaged_file_of_the_cache_is_fetched_again(mnist, own_cache, caplog):
    data.fetch("mnist")
    path = own_cache / "data" / "MNIST" / "raw" / LAST
    path.write_bytes(path.read_bytes()[:9])
    caplog.clear()
    mnist.asked.clear()
    mnist.point("good")
    data.fetch("mnist")
    assert [path for path, *_ in mnist.asked] == [f"/good/{LAST}"]
    (line,) = caplog.messages
    assert line.startswith(f"{path} has md5 ")
    assert line.endswith("; it is fetched again")
    assert_tiny_idx(data.load("mnist"))


def test_a_damaged_file_stays_until_another_is_there(mnist, own_cache):
    """It may be packed anew, and offline there is no other."""
    write_idx(own_cache / "data" / "MNIST")
    path = own_cache / "data" / "MNIST" / "raw" / LAST
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), 1, mtime=9))
    with pytest.raises(DataError, match="offline nothing is downloaded"):
        data.fetch("mnist", offline=True)
    assert_tiny_idx(data.load("mnist"))
    data.fetch("mnist")
    assert path.read_bytes() == mnist.files[LAST]


def test_a_person_s_folder_is_left_alone(mnist, source, caplog):
    published = {k: v for k, v in mnist.files.items() if k.endswith(".gz")}
    unpack(source / "MNIST" / "raw", published)
    assert data.fetch("mnist") == source
    assert caplog.messages == []
    path = source / "MNIST" / "raw" / LAST
    path.write_bytes(path.read_bytes()[:9])
    assert data.fetch("mnist") == source
    (line,) = caplog.messages
    assert f"packed anew or damaged: {path} has md5 " in line
    assert mnist.asked == []
    path.unlink()  # now the folder is incomplete: its files are used, none is changed
    data.fetch("mnist")
    assert [path for path, *_ in mnist.asked] == [f"/down/{LAST}", f"/good/{LAST}"]
    assert_tiny_idx(data.load("mnist"))
    assert len(names(source / "MNIST" / "raw")) == 3


def test_unzipped_files_are_good_too(mnist, source):
    write_idx(source / "MNIST", packed=False)
    assert data.fetch("mnist") == source


@pytest.mark.parametrize("way", ["argument", "FEDLIB_OFFLINE"])
def test_offline_one_message_says_what_from_where_to_where(
    mnist, source, own_cache, monkeypatch, way
):
    if way != "argument":
        monkeypatch.setenv("FEDLIB_OFFLINE", "1")
    with pytest.raises(DataError) as caught:
        data.fetch("mnist", offline=True if way == "argument" else None)
    told = str(caught.value)
    assert told.startswith("MNIST is not here, and offline nothing is downloaded.")
    assert f"Looked in: {source}, {own_cache / 'data'}" in told
    for file in data.DATASETS["mnist"].downloads:
        assert f"\n  {file.path} ({file.hash}): {' or '.join(file.urls)}\n" in told
    assert mnist.asked == []
    assert str(caught.value).count("not here") == 1


def test_offline_set_to_0_is_online(mnist, monkeypatch):
    monkeypatch.setenv("FEDLIB_OFFLINE", "0")
    data.fetch("mnist")
    with pytest.raises(DataError, match="offline nothing is downloaded"):
        data.fetch("cifar10", offline=True)


def test_load_says_what_to_fetch(mnist):
    with pytest.raises(DataError) as caught:
        data.load("mnist")
    for file in data.DATASETS["mnist"].downloads:
        assert f"{file.path} ({file.hash}): {' or '.join(file.urls)}" in str(
            caught.value
        )


def test_data_without_downloads_have_a_guide(server, monkeypatch):
    entry = data.DATASETS["fashion"]._replace(downloads=())
    monkeypatch.setitem(data.DATASETS, "fashion", entry)
    for function in (data.fetch, data.load):
        with pytest.raises(DataError, match="steps of: fedlib data guide fashion"):
            function("fashion")


def test_downloads_that_are_not_all(mnist, monkeypatch):
    """Of a data set of which a part needs a form."""
    entry = data.DATASETS["mnist"]
    monkeypatch.setitem(
        data.DATASETS, "mnist", entry._replace(downloads=entry.downloads[:3])
    )
    told = "not here completely, though all .*lacks MNIST/raw/t10k-labels-idx1-ubyte"
    with pytest.raises(DataError, match=told):
        data.fetch("mnist")


def test_embedded_data_need_no_fetch(server, capsys):
    data.fetch("digits", echo=print)
    told = "digits comes with scikit-learn; there is nothing to fetch\n"
    assert capsys.readouterr().out == told


def test_two_at_once_fetch_once(mnist):
    """In threads, which hold the lock of a file as processes do."""
    mnist.faults["good"] = "slow"
    told: list[str] = []
    fetch = functools.partial(data.fetch, "mnist", echo=told.append)
    twins = [threading.Thread(target=fetch) for _ in range(2)]
    for twin in twins:
        twin.start()
    for twin in twins:
        twin.join()
    good = [path for path, *_ in mnist.asked if path.startswith("/good/")]
    assert sorted(good) == sorted(f"/good/{name}.gz" for name in idx_files())
    assert len(mnist.asked) == 5
    assert ["already" in line for line in told] == [False, True]
    assert_tiny_idx(data.load("mnist"))


# archives


ARCHIVE = "cifar-10-python.tar.gz"


def tar_of(folder: Path, *extra: tarfile.TarInfo) -> bytes:
    """Return a gzipped tar of the folder, then members of three bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        archive.add(folder, folder.name)
        for member in extra:
            member.size = 3 if member.isreg() else 0
            archive.addfile(member, io.BytesIO(b"abc"))
    return out.getvalue()


@pytest.fixture
def cifar(server, tmp_path, monkeypatch):
    """Serve tiny batches of CIFAR-10, packed as the original."""
    write_batches(tmp_path / "batches")
    exists = lambda path, md5=None: os.path.isfile(path)  # noqa: E731
    monkeypatch.setattr(tv.cifar, "check_integrity", exists)
    server.batches = tmp_path / "batches" / "cifar-10-batches-py"

    def serve(content: bytes, **facts) -> None:
        server.files[ARCHIVE] = content
        entry = data.DATASETS["cifar10"]
        found = remote(server, ARCHIVE, unpack=True, **facts)
        monkeypatch.setitem(
            data.DATASETS, "cifar10", entry._replace(downloads=(found,))
        )

    serve(tar_of(server.batches))
    server.serve = serve
    return server


def assert_unpacked(cifar, home: Path) -> None:
    assert shown(home) == ["cifar-10-batches-py"]
    for path in cifar.batches.iterdir():
        unpacked = home / "cifar-10-batches-py" / path.name
        assert unpacked.read_bytes() == path.read_bytes()
    assert len(data.load("cifar10").train_y) == 10


def test_an_archive_is_unpacked_and_not_kept(cifar, own_cache):
    assert data.fetch("cifar10") == own_cache / "data"
    assert_unpacked(cifar, own_cache / "data")
    assert data.fetch("cifar10") == own_cache / "data"
    assert len(cifar.asked) == 1


@pytest.mark.parametrize("damage", ["removed", "cut"])
def test_a_damaged_unpacked_file_is_fetched_again(cifar, own_cache, damage):
    data.fetch("cifar10")
    path = own_cache / "data" / "cifar-10-batches-py" / "test_batch"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:99])
    else:
        path.unlink()
    data.fetch("cifar10")
    assert_unpacked(cifar, own_cache / "data")
    assert len(cifar.asked) == 2


def test_an_archive_cut_in_half_is_removed_and_fetched_again(cifar, own_cache, caplog):
    """A16."""
    home = own_cache / "data"
    home.mkdir(parents=True)
    content = cifar.files[ARCHIVE]
    (home / ARCHIVE).write_bytes(content[: len(content) // 2])
    data.fetch("cifar10")
    assert_unpacked(cifar, home)
    (line,) = caplog.messages
    assert line.startswith(f"{home / ARCHIVE} has md5 ")


def test_an_archive_in_a_person_s_folder_is_unpacked_offline(cifar, own_cache, source):
    (source / ARCHIVE).write_bytes(cifar.files[ARCHIVE])
    assert data.fetch("cifar10", offline=True) == own_cache / "data"
    assert_unpacked(cifar, own_cache / "data")
    assert names(source) == [ARCHIVE]
    assert cifar.asked == []


def link(name: str, to: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, to
    return member


def special(name: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = kind
    return member


EVIL = {
    "parent": tarfile.TarInfo("../evil"),
    "deeper": tarfile.TarInfo("cifar-10-batches-py/../../evil"),
    "absolute": tarfile.TarInfo("/evil/absolute"),
    "symlink": link("evil", "/etc/passwd", tarfile.SYMTYPE),
    "relative symlink": link("cifar-10-batches-py/evil", "../../x", tarfile.SYMTYPE),
    "hard link": link("evil", "../x", tarfile.LNKTYPE),
    "link inside": link("cifar-10-batches-py/evil", "data_batch_1", tarfile.SYMTYPE),
    "hard link inside": link(
        "cifar-10-batches-py/evil", "cifar-10-batches-py/data_batch_1", tarfile.LNKTYPE
    ),
    "long link": link("cifar-10-batches-py/evil", "x/" * 3000, tarfile.SYMTYPE),
    "device": special("evil", tarfile.CHRTYPE),
    "pipe": special("evil", tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("kind", EVIL)
def test_a_member_that_leaves_its_archive_is_refused(cifar, tmp_path, own_cache, kind):
    good, member = cifar.files[ARCHIVE], EVIL[kind]
    cifar.serve(tar_of(cifar.batches, member), hash="")
    told = f"{ARCHIVE}: member '{member.name}' leaves the archive or is no plain file"
    with pytest.raises(DataError, match=f"{told}; refused"):
        data.fetch("cifar10")
    assert shown(own_cache / "data") == []
    assert not list(tmp_path.rglob("*evil*"))
    assert not Path("/evil").exists()
    cifar.serve(good, hash="")
    data.fetch("cifar10")
    assert_unpacked(cifar, own_cache / "data")


@pytest.mark.parametrize(
    "damage",
    [
        lambda good: good[: len(good) // 2],
        lambda good: good[:-9],  # the end of gzip's checksum
        lambda good: gzip.compress(gzip.decompress(good)[:10_000]),
        lambda good: b"no archive",
        lambda good: bytes(9999),
        lambda good: b"",
    ],
    ids=["half", "end", "inside", "other", "zeros", "empty"],
)
def test_a_damaged_archive_without_a_hash(cifar, own_cache, damage):
    good = cifar.files[ARCHIVE]
    cifar.serve(damage(good), hash="")
    with pytest.raises(DataError, match=f"{ARCHIVE} is damaged"):
        data.fetch("cifar10")
    assert shown(own_cache / "data") == []
    cifar.serve(good, hash="")
    data.fetch("cifar10")
    assert_unpacked(cifar, own_cache / "data")


def announced(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Return a member's header that promises so many bytes, with none behind it."""
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


BOMBS = {
    "one large member": (announced("a", 2**40), "more than 34.4 GB when unpacked"),
    "many members": (b"".join(announced(f"{n}", 0) for n in range(9)), "than 8 membe"),
    "a name without end": (
        announced("a", 2**33, tarfile.GNUTYPE_LONGNAME),
        "a name of",
    ),
    "a header without end": (announced("a", 2**33, tarfile.XHDTYPE), "a name of 8589"),
    "zeros behind the end": (announced("a", 0) + bytes(99_999), "behind its members"),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_an_archive_that_grows_is_refused_before_it_does(
    cifar, own_cache, kind, monkeypatch
):
    monkeypatch.setattr(unpacking, "MOST_MEMBERS", 8)
    if kind == "zeros behind the end":
        monkeypatch.setattr(unpacking, "MOST_BYTES", 50_000)
    bomb, told = BOMBS[kind]
    cifar.serve(gzip.compress(bomb + bytes(1024)), hash="")
    with pytest.raises(DataError, match=told):
        data.fetch("cifar10")
    assert shown(own_cache / "data") == []


def test_a_full_disk_while_unpacking_keeps_the_archive(cifar, own_cache):
    (cifar.batches / "zeros").write_bytes(bytes(200_000))  # almost nothing, packed
    cifar.serve(tar_of(cifar.batches))
    with file_limit(100_000):
        with pytest.raises(DataError, match="File too large: more is needed in "):
            data.fetch("cifar10")
    assert shown(own_cache / "data") == []
    assert len(cifar.asked) == 1
    data.fetch("cifar10")
    assert_unpacked(cifar, own_cache / "data")
    assert len(cifar.asked) == 1


def test_a_killed_unpacking_starts_again(cifar, own_cache):
    left = own_cache / "data" / ".partial" / "cifar10" / "unpacked" / "old"
    left.mkdir(parents=True)
    data.fetch("cifar10")
    assert_unpacked(cifar, own_cache / "data")


# guides


@pytest.mark.parametrize("name", data.DATASETS)
def test_every_data_set_has_a_guide(name):
    page = data.guide(name)
    entry = data.DATASETS[name]
    assert page.startswith("# ")
    assert f"fedlib data check {entry.guide or name}" in page
    assert len(page.splitlines()) >= 12
    assert all(len(line) <= 100 for line in page.splitlines())
    for file in entry.downloads:
        assert Path(file.path).name.split("-")[0] in page


def test_a_variant_shares_its_page(monkeypatch):
    entry = data.DATASETS["cifar10"]._replace(guide="cifar10")
    monkeypatch.setitem(data.DATASETS, "cifar10_other", entry)
    assert data.guide("cifar10_other") == data.guide("cifar10")


def test_guides_are_in_the_wheel():
    """Their patterns are found in the source folder, as setuptools looks for them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (pattern,) = project["tool"]["setuptools"]["package-data"]["fedlib.data"]
    pages = {p.stem for p in (ROOT / "fedlib" / "data").glob(pattern)}
    assert {entry.guide or name for name, entry in data.DATASETS.items()} <= pages
