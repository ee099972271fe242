"""Files through a DVC remote: in DVC's own layout, checked, and never half."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.project import make_project

from pflcore.errors import UserError
from pipeline.dvc.remote import Content, Missing, Remote, StoredResult, default_remote

KEY = "0" * 64
OUT = "artifacts/runs/a/rounds.parquet"
FIRST, SECOND = (f"run-01234567/round-00000{number}-0123456789abcdef.safetensors" for number in (1, 2))


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote({"url": str(tmp_path / "remote")})


def exchange(remote: Remote, folder: Path) -> None:
    """Everything that passes through a remote, there and back."""
    folder.mkdir(exist_ok=True)
    (folder / "out").write_bytes(b"measured")
    content = Content.of(folder / "out")
    assert (remote.give(folder / "out", content), remote.give(folder / "out", content)) == (True, False)
    remote.take(content, folder / "there/out")
    assert (folder / "there/out").read_bytes() == b"measured"

    assert remote.result(KEY, (OUT,)) is None
    result = StoredResult({OUT: content}, diverged=True, timing="{}")
    remote.report(KEY, result)
    assert remote.result(KEY, (OUT,)) == result

    assert remote.checkpoints(KEY) == []
    for name in (FIRST, SECOND):
        remote.give_checkpoint(KEY, name, folder / "out")
    assert remote.checkpoints(KEY) == [FIRST, SECOND]
    remote.drop_checkpoint(KEY, FIRST)
    assert remote.checkpoints(KEY) == [SECOND]
    remote.take_checkpoint(KEY, SECOND, folder / "there" / SECOND)
    assert (folder / "there" / SECOND).read_bytes() == b"measured"
    remote.drop_checkpoints(KEY)
    remote.drop_checkpoints(KEY)
    assert remote.checkpoints(KEY) == []


def test_a_folder_as_remote(remote: Remote, tmp_path: Path) -> None:
    exchange(remote, tmp_path / "machine")
    left = {path.relative_to(tmp_path / "remote").as_posix() for path in (tmp_path / "remote").rglob("*.*")}
    assert left == {f"pfl/results/{KEY}.json"}, "nothing half, and no checkpoints of what is over"


@pytest.mark.matrix
def test_what_is_uploaded_lies_where_dvc_push_would_put_it(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    project.write("a.txt", "hello")
    assert project.call("dvc", "add", "-q", "a.txt").returncode == 0
    assert project.call("dvc", "remote", "add", "-q", "-d", "store", str(tmp_path / "remote")).returncode == 0
    remote = Remote({"url": str(tmp_path / "remote")})
    assert remote.give(tmp_path / "a.txt", Content.of(tmp_path / "a.txt"))
    assert "up to date" in project.call("dvc", "push").stdout


def test_a_damaged_object_is_refused_and_nothing_is_written(remote: Remote, tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"measured")
    content = Content.of(tmp_path / "out")
    remote.give(tmp_path / "out", content)
    Path(remote.object(content.md5)).write_bytes(b"measureD")
    with pytest.raises(UserError, match="is damaged; delete it there"):
        remote.take(content, tmp_path / "there/out")
    assert not list((tmp_path / "there").iterdir())
    Path(remote.object(content.md5)).write_bytes(b"meas")  # of another size it is replaced by who has it
    assert remote.give(tmp_path / "out", content)
    Path(remote.object(content.md5)).unlink()
    with pytest.raises(Missing, match="is not in the remote"):
        remote.take(content, tmp_path / "there/out")


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        json.dumps({"outs": {"../../evil": {"md5": "0" * 32, "size": 1}}, "diverged": False}),
        json.dumps({"outs": {OUT: {"md5": "0" * 32, "size": 1}, "/etc/x": {"md5": "0" * 32, "size": 1}}}),
        json.dumps({"outs": {OUT: {"md5": "../../../etc/passwd", "size": 1}}, "diverged": False}),
    ],
)
def test_a_result_that_is_none_is_refused_in_one_line(remote: Remote, tmp_path: Path, text: str) -> None:
    place = tmp_path / f"remote/pfl/results/{KEY}.json"
    place.parent.mkdir(parents=True)
    place.write_text(text)
    with pytest.raises(UserError, match=r"no result of this stage; delete it$") as refusal:
        remote.result(KEY, (OUT,))
    assert "\n" not in str(refusal.value)


def test_checkpoints_with_other_names_are_passed_over(remote: Remote, tmp_path: Path) -> None:
    folder = tmp_path / f"remote/pfl/checkpoints/{KEY}"
    for name in ("a/../../b", "run-1/lock", "round-000001-0123456789abcdef.safetensors", FIRST):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    assert remote.checkpoints(KEY) == [FIRST]


def test_a_default_remote_that_files_cannot_pass_through_is_refused() -> None:
    with pytest.raises(UserError, match="dvc remote add -d NAME URL"):
        default_remote({"core": {}, "remote": {"a": {"url": "/somewhere"}}})
    with pytest.raises(UserError, match="a cluster cannot use one with `worktree`"):
        default_remote({"core": {"remote": "a"}, "remote": {"a": {"url": "s3://b/c", "worktree": True}}})
    with pytest.raises(UserError, match="remote a: "):
        default_remote({"core": {"remote": "a"}, "remote": {}})
    shared = {"base": {"url": "/somewhere"}, "a": {"url": "remote://base/deeper"}}
    assert default_remote({"core": {"remote": "a"}, "remote": shared}).url == "/somewhere/deeper"


def test_what_is_wrong_with_a_remote_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match=f"^remote {tmp_path}/file: "):
        Remote({"url": str(tmp_path / "file")}).give(tmp_path / "file", Content.of(tmp_path / "file"))


def test_secrets_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"url": "webdav://me:pass-word@localhost:9/pfl", "password": "hidden", "token": "taken", "timeout": 1}
    with monkeypatch.context() as installed:
        installed.setattr("dvc.fs.get_cloud_fs", lambda *_, **__: (SimpleNamespace, {"protocol": "webdav"}, "pfl"))
        remote = Remote(settings)
    assert remote.public == {"url": "webdav://me@localhost:9/pfl", "timeout": 1}, "what a node is sent"
    assert remote.withheld == ["password", "token", "the password in its url"]

    def refuse(*_: object) -> None:
        raise ConnectionError("webdav://me:pass-word@localhost:9/pfl/x does not take hidden, nor taken")

    remote.fs = SimpleNamespace(cat_file=refuse, join=lambda *parts: "/".join(parts))
    with pytest.raises(UserError) as refusal:
        remote.result(KEY, (OUT,))
    assert str(refusal.value) == (
        "remote webdav://me@localhost:9/pfl: webdav://me@localhost:9/pfl/x does not take ***, nor ***"
    )


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Settings of a remote in a bucket of a server that speaks S3."""
    pytest.importorskip("dvc_s3")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0)
    import boto3

    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "endpointurl": f"http://{host}:{port}",
        "access_key_id": "user",
        "secret_access_key": "hidden",
        "region": "us-east-1",
    }
    client = boto3.client(
        "s3",
        endpoint_url=settings["endpointurl"],
        aws_access_key_id="user",
        aws_secret_access_key="hidden",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="store")
    yield {"url": "s3://store/pfl", **settings}
    server.stop()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of libraries that only this test needs
def test_a_bucket_as_remote(bucket: dict[str, str], tmp_path: Path) -> None:
    exchange(Remote(bucket), tmp_path / "machine")
    exchange(Remote({**bucket, "url": "s3://store/other"}), tmp_path / "machine")
    with pytest.raises(UserError, match=r"^remote s3://missing/x: ") as refusal:
        Remote({**bucket, "url": "s3://missing/x"}).give(tmp_path / "machine/out", Content("0" * 32, 8))
    assert "hidden" not in str(refusal.value)
