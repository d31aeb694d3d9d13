"""A Hub on the loopback interface: the calls that pushing and loading a model make, kept in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest


@dataclass
class Repository:
    private: bool = False
    sdk: str | None = None
    # branch -> {path: content}; every commit is a new dictionary, kept by its id
    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {".gitattributes": b""}})
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def commit_of(self, revision: str) -> str | None:
        if revision in self.commits:
            return revision
        if revision not in self.branches:
            return None
        content = self.branches[revision]
        digest = hashlib.sha1()
        for path in sorted(content):
            digest.update(path.encode() + b"\0" + content[path])
        commit = digest.hexdigest()
        self.commits[commit] = content
        return commit


class LoopbackHub:
    """`with LoopbackHub() as hub:` serves at `hub.endpoint`; `hub.failures[CALL] = [status, ...]` fails the next calls.

    A Space stands among the repositories as `spaces/USER/NAME`.

    CALL is one of create, preupload, lfs, commit, resolve.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.lfs: dict[str, bytes] = {}
        self.failures: dict[str, list[int]] = {}
        self.tokens: set[str] = {"hf_dummy"}
        self.readers: set[str] = set()
        self.calls: list[str] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"hub": self}))
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> LoopbackHub:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def hub_and_token(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A Hub that huggingface_hub speaks to, with a token that it accepts."""
    with LoopbackHub() as running:
        # The environment is read at import, long before this port was known.
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", running.endpoint)
        monkeypatch.setenv("HF_TOKEN", "hf_dummy")
        yield running


class Handler(BaseHTTPRequestHandler):
    hub: LoopbackHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def reply(self, status: int, body: Any = b"", headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, status: int, message: str, code: str | None = None) -> None:
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self.reply(status, {"error": message}, headers)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def fails(self, call: str) -> bool:
        self.hub.calls.append(call)
        if self.hub.failures.get(call):
            self.refuse(self.hub.failures[call].pop(0), f"made to fail at {call}")
            return True
        return False

    @property
    def token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def do_PUT(self) -> None:
        data = self.body()
        oid = hashlib.sha256(data).hexdigest()
        if oid != self.path.rsplit("/", 1)[-1]:
            self.refuse(400, "content does not match its name")
            return
        self.hub.lfs[oid] = data
        self.reply(200)

    def do_POST(self) -> None:
        data, path = self.body(), unquote(urlsplit(self.path).path)
        if path == "/api/validate-yaml":
            self.reply(200, {"errors": [], "warnings": []})
        elif self.token in self.hub.readers:
            self.refuse(403, "the token may only read")
        elif self.token not in self.hub.tokens:
            self.refuse(401, "unknown token")
        elif path == "/api/repos/create":
            self.create(json.loads(data))
        elif match := re.fullmatch(r"/(.+?)\.git/info/lfs/objects/batch", path):
            self.lfs_batch(json.loads(data))
        elif match := re.fullmatch(r"/api/(models|spaces)/(.+?/.+?)/(preupload|commit|branch)/(.+)", path):
            kind, repo_id, call, revision = match.groups()
            repo_id = self.key(kind, repo_id)
            repository = self.hub.repositories.get(repo_id)
            if repository is None:
                self.refuse(404, f"no repository {repo_id}", "RepoNotFound")
            else:
                getattr(self, call)(repo_id, repository, revision, data)
        else:
            self.refuse(404, f"no such call: {path}")

    @staticmethod
    def key(kind: str, repo_id: str) -> str:
        return repo_id if kind == "models" else f"{kind}/{repo_id}"

    def create(self, request: dict[str, Any]) -> None:
        if self.fails("create"):
            return
        name = "/".join(filter(None, (request.get("organization"), request["name"])))
        name = self.key(f"{request.get('type', 'model')}s", name)
        url = {"url": f"{self.hub.endpoint}/{name}"}
        if name in self.hub.repositories:
            self.reply(409, {"error": "exists", **url})
            return
        private = request.get("private") or request.get("visibility") == "private"
        self.hub.repositories[name] = repository = Repository(bool(private), request.get("sdk"))
        if repository.sdk is not None:
            repository.branches["main"]["README.md"] = b"---\nsdk: gradio\n---\n"
        self.reply(200, url)

    def lfs_batch(self, request: dict[str, Any]) -> None:
        if self.fails("lfs"):
            return
        objects = [
            {**entry, "actions": {"upload": {"href": f"{self.hub.endpoint}/lfs/{entry['oid']}"}}}
            for entry in request["objects"]
        ]
        headers = {"Content-Type": "application/vnd.git-lfs+json"}
        self.reply(200, {"transfer": "basic", "objects": objects}, headers)

    def preupload(self, repo_id: str, repository: Repository, revision: str, data: bytes) -> None:
        if self.fails("preupload"):
            return
        modes = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(data)["files"]
        ]
        self.reply(200, {"files": modes})

    def commit(self, repo_id: str, repository: Repository, revision: str, data: bytes) -> None:
        if self.fails("commit"):
            return
        content = dict(repository.branches[revision])
        for line in data.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                content[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                content[value["path"]] = self.hub.lfs[value["oid"]]
            elif entry["key"] == "deletedFile":
                content.pop(value["path"], None)
        repository.branches[revision] = content
        commit = repository.commit_of(revision)
        self.reply(200, {"commitOid": commit, "commitUrl": f"{self.hub.endpoint}/{repo_id}/commit/{commit}"})

    def branch(self, repo_id: str, repository: Repository, revision: str, data: bytes) -> None:
        repository.branches.setdefault(revision, dict(repository.branches["main"]))
        self.reply(201)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == "/api/whoami-v2":
            if self.token in self.hub.tokens | self.hub.readers:
                self.reply(200, {"name": "user", "type": "user"})
            else:
                self.refuse(401, "unknown token")
            return
        match = re.fullmatch(r"/api/(models|spaces)/([^/]+/[^/]+)(?:/(?:revision|tree)/([^/]+))?(?:/.*)?", path)
        resolved = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if not match and not resolved:
            self.refuse(404, f"no such call: {path}")
            return
        if match:
            kind, repo_id, revision = match.groups()
            repo_id = self.key(kind, repo_id)
        else:
            repo_id, revision, name = resolved.groups()
        repository = self.hub.repositories.get(repo_id)
        if repository is None or (repository.private and self.token not in self.hub.tokens | self.hub.readers):
            self.refuse(404, f"no repository {repo_id}", "RepoNotFound")
            return
        commit = repository.commit_of(revision or "main")
        if commit is None:
            self.refuse(404, f"no revision {revision}", "RevisionNotFound")
        elif resolved:
            self.resolve(repository.commits[commit], commit, name)
        elif "/tree/" in path:
            content = repository.commits[commit]
            self.reply(200, [self.entry(name, content[name]) for name in sorted(content)])
        else:
            siblings = [{"rfilename": name} for name in sorted(repository.commits[commit])]
            told = {"id": repo_id, "modelId": repo_id, "sha": commit, "private": repository.private}
            self.reply(200, {**told, "siblings": siblings, "tags": []})

    do_HEAD = do_GET

    @staticmethod
    def entry(name: str, data: bytes) -> dict[str, Any]:
        entry = {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
        if name.endswith(".safetensors"):
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        return entry

    def resolve(self, content: dict[str, bytes], commit: str, name: str) -> None:
        if self.fails("resolve"):
            return
        if name not in content:
            self.refuse(404, f"no file {name}", "EntryNotFound")
            return
        etag = f'"{hashlib.sha256(content[name]).hexdigest()}"'
        headers = {"X-Repo-Commit": commit, "ETag": etag, "Content-Type": "application/octet-stream"}
        if name.endswith(".safetensors"):
            headers |= {"X-Linked-Etag": etag, "X-Linked-Size": str(len(content[name]))}
        self.reply(200, content[name], headers)
