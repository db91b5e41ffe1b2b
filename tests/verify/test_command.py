"""`onefold verify` as its user meets it: what it asks for, what it says, what it writes, and what it never shows."""

from __future__ import annotations

import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from onefold._verify.catalogue import CHECKS
from tests.cli.commands import onefold
from tests.verify.model_api import ModelApi
from tests.verify.model_server import serving

BODY = ("--body", '{"item": "{{unique}}"}')
ACME = ("--header", "Authorization: Bearer sk-acme-secret")
UMBRELLA = ("--other-header", "Authorization: Bearer sk-umbrella-secret")
REPORTS = ("--json", "r.json", "--junit", "r.xml", "--html", "r.html", "--metrics", "r.prom")

Ran = subprocess.CompletedProcess[str]


def verify(url: str, *words: str, cwd: Path | None = None) -> Ran:
    return onefold("verify", url, *BODY, *ACME, "--duplicates", "4", *words, cwd=cwd)


def refused(answer: Ran) -> str:
    """The one line that wrong options are told in."""
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.count("\n") == 1, answer.stderr
    return answer.stderr


def test_an_api_that_keeps_the_contract_passes_over_sockets_with_a_count(tmp_path: Path) -> None:
    counter = tmp_path / "count"
    with serving(ModelApi(), counter) as url:
        answer = verify(
            f"{url}/orders", *UMBRELLA, "--other-url", f"{url}/refunds", "--count", f"cat '{counter}'", cwd=tmp_path
        )
    assert answer.returncode == 0, answer.stdout
    assert answer.stdout.startswith(f"PASSED: {url}/orders keeps the contract: ")
    said = re.search(r"sends at most (\d+) requests", answer.stderr)
    sent = re.search(r"; (\d+) requests", answer.stdout)
    assert said is not None
    assert sent is not None
    assert int(sent[1]) <= int(said[1])
    assert "skipped  expiry: give --expiry" in answer.stdout


@pytest.mark.parametrize("planted", [True, False])
@pytest.mark.parametrize(
    ("defect", "check", "groups"),
    [
        ("no lock", "parallel", (1, 1, 1, 4, 1, 4, 1, 4, 1)),
        ("409 for another payload in flight", "mismatch-in-flight", (1, 1, 1, 2, 2, 2)),
    ],
)
def test_what_happens_at_the_same_time_is_found_over_sockets(
    defect: str, check: str, groups: tuple[int, ...], planted: bool
) -> None:
    with serving(ModelApi(frozenset({defect} if planted else ())), groups=groups) as url:
        answer = verify(f"{url}/orders", "--only", check)
    assert answer.returncode == int(planted), answer.stdout
    assert re.findall(r"^FAILED   ([\w-]+)", answer.stdout, re.MULTILINE) == ([check] if planted else [])
    assert answer.stdout.count("  sent  ") <= 4 * planted, "of the round that failed, and each request once"


def test_raw_headers_reach_the_server_as_they_were_written() -> None:
    api = ModelApi(frozenset({"picks one of two lines"}))
    with serving(api) as url:
        answer = verify(f"{url}/orders", "--only", "key-repeated", "--only", "key-malformed")
    assert re.findall(r"^FAILED   ([\w-]+)", answer.stdout, re.MULTILINE) == ["key-repeated"]
    keys = [[value for name, value in sent.headers if name.lower() == "idempotency-key"] for sent in api.requests]
    assert max(len(lines) for lines in keys) == 2
    assert any("é".encode() in line for lines in keys for line in lines)


class _Page(HTMLParser):
    """Collects what is open and never closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.rows += tag == "tr"
        if tag not in ("meta", "p", "li"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("p", "li"):
            assert self.open.pop() == tag


@pytest.mark.parametrize("defect", ["answers once", None])
def test_every_report_is_well_formed_and_says_the_same(defect: str | None, tmp_path: Path) -> None:
    with serving(ModelApi(frozenset({defect} if defect else ()))) as url:
        answer = verify(f"{url}/orders", "--only", "replay", "--only", "replay-mark", *REPORTS, cwd=tmp_path)
    failed = int(defect is not None)
    assert answer.returncode == failed
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["verdict"] == ("failed" if failed else "passed")
    assert {finding["check"]: finding["outcome"] for finding in report["findings"]} == {
        "replay": "failed" if failed else "passed",
        "replay-mark": "skipped",
    }
    [suite] = ElementTree.fromstring((tmp_path / "r.xml").read_text())
    assert [suite.get(name) for name in ("tests", "failures", "skipped", "errors")] == ["2", str(failed), "1", "0"]
    assert len(list(suite.iter("failure"))) == failed
    page = _Page()
    page.feed((tmp_path / "r.html").read_text())
    assert (page.open, page.rows) == ([], 3)
    samples = _samples(tmp_path / "r.prom")
    assert samples["onefold_verify_success"] == 1 - failed
    assert samples["onefold_verify_check_passed"] == 1 - failed
    assert samples["onefold_verify_last_run_timestamp_seconds"] > 1.7e9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.json", "r.prom", "r.xml"]


def _samples(path: Path) -> dict[str, float]:
    """As Prometheus reads them: every line is a comment or a sample, and each metric has its type."""
    lines = path.read_text().splitlines()
    found = {}
    for line in lines:
        if not line.startswith("# "):
            match = re.fullmatch(r'(\w+)\{(?:\w+="(?:[^"\\]|\\.)*",?)+\} ([0-9.]+)', line)
            assert match, line
            found[match[1]] = float(match[2])
    assert {f"# TYPE {name} gauge" for name in found} <= set(lines)
    return found


def test_no_credential_appears_in_any_output(tmp_path: Path) -> None:
    """Also where the API itself repeats them, and where a command fails with them."""
    template = '{"item": "sk-acme-secret hunter2 dXNlcjpwYXNz {{n}}"}'
    words = [
        *("--header", "Cookie: session=hunter2"),
        *("--header", "X-Basic: Basic dXNlcjpwYXNzd29yZHBsYWlu"),
        *UMBRELLA,
        *REPORTS,
    ]
    with serving(ModelApi(frozenset({"no principal", "replays cookies", "answers once"}))) as url:
        address = f"{url}/orders?api_token=querysecret"
        answer = onefold("verify", address, "--body", template, *ACME, *words, cwd=tmp_path)
        failing = onefold(
            *("verify", f"{url}/orders", *BODY, *ACME, *REPORTS),
            *("--count", "cat postgresql://me:commandpw@127.0.0.1/none"),
            cwd=tmp_path,
        )
    assert answer.returncode == 1, answer.stderr
    assert failing.returncode == 2
    assert "--count failed" in failing.stdout
    shown = [answer.stdout, answer.stderr, failing.stdout, failing.stderr]
    shown += [path.read_text() for path in tmp_path.iterdir()]
    for secret in (
        *("sk-acme-secret", "sk-umbrella-secret", "hunter2", "querysecret", "commandpw"),
        *("passwordplain", "dXNlcjpwYXNzd29yZHBsYWlu", "session=s"),
    ):
        assert not [text for text in shown if secret in text], secret


def test_another_machine_is_refused_unless_it_is_owned() -> None:
    for url in ("http://192.0.2.1/orders", "https://example.com/orders", "http://localhost.example.com/orders"):
        assert "--i-own-this" in refused(verify(url))
    assert "--i-own-this" in refused(verify("http://127.0.0.1:1/", "--other-url", "http://192.0.2.1/refunds"))
    allowed = verify("http://192.0.2.1/orders", "--i-own-this", "--dry-run")
    assert (allowed.returncode, allowed.stderr) == (0, "")
    for url in ("http://localhost:1/", "http://127.8.8.8:1/", "http://[::1]:1/", "http://shop.localhost:1/"):
        assert verify(url, "--dry-run").returncode == 0


def test_a_dry_run_says_what_it_would_send_and_sends_nothing() -> None:
    api = ModelApi()
    with serving(api) as url:
        answer = verify(f"{url}/orders", "--dry-run")
    assert answer.returncode == 0
    assert "sends at most" in answer.stdout
    assert re.findall(r"^([\w-]+): ", answer.stdout, re.MULTILINE) == [
        check.name for check in CHECKS if check.name != "replay-mark"
    ]
    assert api.requests == []


def test_a_target_that_is_not_there_is_not_tested_and_the_reports_say_so(tmp_path: Path) -> None:
    answer = verify("http://127.0.0.1:1/orders", *REPORTS, cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stdout.startswith("NOT TESTED: http://127.0.0.1:1/orders: it cannot be reached")
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "unusable"
    [suite] = ElementTree.fromstring((tmp_path / "r.xml").read_text())
    assert suite.get("errors") == "1"
    samples = _samples(tmp_path / "r.prom")
    assert (samples["onefold_verify_success"], samples["onefold_verify_usable"]) == (0, 0)


def test_a_canary_says_one_line_and_fails_with_all_of_it() -> None:
    with serving(ModelApi()) as url:
        well = verify(f"{url}/orders", "--canary")
    assert (well.returncode, well.stdout.count("\n")) == (0, 1)
    with serving(ModelApi(frozenset({"answers once"}))) as url:
        ill = verify(f"{url}/orders", "--canary")
    assert ill.returncode == 1
    assert "  what to do  store the answer" in ill.stdout


@pytest.mark.parametrize("words", [[], ["--canary"]])
def test_what_answers_cannot_tell_is_no_success_and_the_first_line_asks_for_a_count(
    words: list[str], tmp_path: Path
) -> None:
    api = ModelApi(frozenset({"runs every retry"}), answers_alike=True, marks=False)
    with serving(api) as url:
        answer = verify(f"{url}/orders", *words, *REPORTS, cwd=tmp_path)
    assert answer.returncode == 2
    first = answer.stdout.partition("\n")[0]
    assert first.startswith(f"UNDECIDED: {url}/orders: ")
    assert "--count" in first
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "untold"
    [suite] = ElementTree.fromstring((tmp_path / "r.xml").read_text())
    assert suite.get("errors") == "1"
    assert _samples(tmp_path / "r.prom")["onefold_verify_success"] == 0
    with serving(api, tmp_path / "count") as url:
        counted = verify(f"{url}/orders", *words, "--count", "cat count", cwd=tmp_path)
    assert counted.returncode == 1


def test_the_checks_that_are_announced_are_those_of_the_result() -> None:
    for words in ([], ["--canary"], ["--skip", "replay"], ["--profile", "stripe", "--key-optional"]):
        stripe = "stripe" in words
        with serving(ModelApi(stripe=stripe, key_optional=stripe)) as url:
            answer = verify(f"{url}/orders", *words)
        said = re.search(r": (\d+) checks of the profile", answer.stderr)
        figures = re.search(r"(\d+) passed, (\d+) failed, (\d+) skipped;", answer.stdout)
        assert said is not None
        assert figures is not None
        assert int(said[1]) == sum(map(int, figures.groups()))
        ahead = re.search(r"at least (\d+) of them skipped \(([\w, -]+)\)", answer.stderr)
        assert (ahead is None) == (words == ["--canary"])
        if ahead is not None:
            assert int(ahead[1]) == len(ahead[2].split(", ")) <= int(figures[3])
            assert all(f"skipped  {name}: " in answer.stdout for name in ahead[2].split(", "))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ftp://127.0.0.1/x"], "is not an address"),
        (["localhost:8000"], "'localhost:8000' has no scheme: write http://localhost:8000"),
        (["//127.0.0.1/orders"], "'127.0.0.1/orders' has no scheme: write http://127.0.0.1/orders"),
        (
            ["hooks.test/services/T0Pa55w0rdPa55w0rdPa55w0rd"],
            "'hooks.test/services/...' has no scheme: write http://hooks.test/services/...",
        ),
        (["me:s3cret@127.0.0.1:1"], "is not an address"),
        (["127.0.0.1:1/?token=s3cret"], "is not an address"),
        (["http://me:s3cret@127.0.0.1:1/"], "give them by --header"),
        (["http://127.0.0.1:1/", "--method", "GET"], "takes no key"),
        (["http://127.0.0.1:1/", "--profile", "acp"], "there are: ietf, stripe"),
        (["http://127.0.0.1:1/", "--only", "replays"], "there is no check 'replays'"),
        (["http://127.0.0.1:1/", "--body", '{"a": {{m}}}'], "is not JSON"),
        (["http://127.0.0.1:1/", "--body", "@nowhere.json"], "nowhere.json cannot be read"),
        (["http://127.0.0.1:1/", "--header", "s3cret"], "is written 'Name: value'"),
        (["http://127.0.0.1:1/", "--header", "X-Name: s3cret\u0142"], "in ASCII"),
        (["http://127.0.0.1:1/", "--header", "Idempotency-Key: k"], "cannot be given"),
        (["http://127.0.0.1:1/", "--count", "cat 'x"], "cannot be split"),
        (["http://127.0.0.1:1/", "--openapi", "x.json"], "belong together"),
        (["http://127.0.0.1:1/", "--json", "no/such/r.json"], "there is no directory"),
        (["http://127.0.0.1:1/", "--publish", "true"], "--publish needs --count"),
        ([], "give the URL of a route"),
    ],
)
def test_wrong_options_are_told_in_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    line = refused(onefold("verify", *words, cwd=tmp_path))
    assert said in line
    assert "s3cret" not in line


def test_without_httpx_it_says_what_to_install() -> None:
    answer = onefold("verify", "http://127.0.0.1:1/", without="httpx")
    assert answer.returncode == 2
    assert "pip install 'onefold[cli,httpx]'" in answer.stderr


@pytest.mark.parametrize("handled_each_time", [True, False])
def test_a_consumer_is_tested_by_two_commands(handled_each_time: bool, tmp_path: Path) -> None:
    """A directory is the consumer: a file per id, or one per delivery."""
    folder = tmp_path / "handled"
    folder.mkdir()
    publish = "mktemp --tmpdir=handled --suffix={{id}}" if handled_each_time else "touch handled/{{id}}"
    answer = onefold(*("verify", "--publish", publish, "--count", "ls handled | wc -l", "--count-shell"), cwd=tmp_path)
    assert answer.returncode == int(handled_each_time), answer.stdout
    assert len(list(folder.iterdir())) == (4 if handled_each_time else 2)


def test_commands_are_not_given_to_a_shell_unless_asked(tmp_path: Path) -> None:
    with serving(ModelApi(), tmp_path / "count") as url:
        answer = verify(f"{url}/orders", "--only", "replay", "--count", "cat count; touch shell", cwd=tmp_path)
    assert answer.returncode == 2
    assert not (tmp_path / "shell").exists()


def test_an_operation_of_an_openapi_document_is_tested(tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["item"], "properties": {"item": {"type": "string"}}}
    place = {"operationId": "place", "requestBody": {"content": {"application/json": {"schema": schema}}}}
    (tmp_path / "api.json").write_text(json.dumps({"openapi": "3.1.0", "paths": {"/orders": {"post": place}}}))
    api = ModelApi()
    with serving(api) as url:
        answer = onefold(
            *("verify", url, "--openapi", "api.json", "--operation", "place", *ACME, "--canary"), cwd=tmp_path
        )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert {request.url for request in api.requests} == {"/orders"}
