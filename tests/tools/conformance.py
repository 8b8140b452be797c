"""Run the official MCP conformance suite against a server URL, or diff two runs.

    conformance run  URL [-s SCENARIO|GROUP ...] [--spec 2026-07-28] [--json OUT] [--allow-fail ID ...]
    conformance diff A B [-s ...] [--spec ...]      A, B: a URL (run now) or a file that `run --json` wrote
    conformance list                                the groups and what is in them

Groups: tasks, core (= every non-extension scenario of --spec), core-2025-06-18, core-2025-11-25,
core-2026-07-28, required-2025-11-25, required-2026-07-28 (the frozen sets), mrtr, all.

`run` prints one line a scenario and ends with `N passed, M failed` (scenarios); exit 0 only if M == 0.
`diff` says which checks got worse from A (direct) to B (proxied); exit 0 only if none did.

A scenario FAILS if any of its checks is FAILURE, if the process crashed or timed out, or if it had no
SUCCESS beyond the suite's own wire-schema check (which is SUCCESS even against a dead URL).  It is
SKIP only when every check is SKIPPED; WARNING never fails it, but is shown.

Run from the root of the repository as `python -m tests.tools.conformance`.  Node and the suite are those
that `make tools` put into .work/.  Standard library only.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path
from typing import Any

from tests.setup_tools import CONFORMANCE, ToolsMissing, node, npm_module

SPECS = ("2025-06-18", "2025-11-25", "2026-07-28")
BOOKKEEPING = {"wire-schema-valid"}  # SUCCESS says nothing: it is SUCCESS when nothing was received


def find_suite() -> list[str]:
    try:
        return [str(node()), str(npm_module(CONFORMANCE))]
    except ToolsMissing as exc:
        sys.exit(f"conformance: {exc}")


# ------------------------------------------------------------------------------------- scenarios


def scenarios(suite: list[str]) -> dict[str, list[str]]:
    """name -> the spec versions it applies to ([] for extension scenarios)"""
    out = subprocess.run([*suite, "list", "--server"], capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {}
    for m in re.finditer(r"^\s+- (\S+) \[([^\]]*)\]", out, re.M):
        tags = [x.strip() for x in m.group(2).split(",")]
        found[m.group(1)] = [x for x in tags if x[:2] == "20"]
    return found


def required(suite: list[str], spec: str) -> list[str]:
    out = subprocess.run(
        [*suite, "list", "--server", "--requirements", spec], capture_output=True, text=True, check=True
    ).stdout
    names, on = [], False
    for line in out.splitlines():
        if line.startswith("Server scenarios"):
            on = True
        elif line and not line.startswith(" "):
            on = False
        m = re.match(r"\s+- (\S+)", line)
        if on and m:
            names.append(m.group(1))
    return names


def select(suite: list[str], wanted: list[str], spec: str | None) -> list[tuple[str, str | None]]:
    every = scenarios(suite)
    picked: list[tuple[str, str | None]] = []

    def add(name: str, at: str | None) -> None:
        # The suite answers `--spec-version` for an extension scenario with SKIPPED and exit 0, so it
        # must be left out there; it then runs them on the 2026-07-28 wire.
        item = (name, None if not every.get(name) else at)
        if item not in picked:
            picked.append(item)

    for w in wanted:
        if w == "tasks":
            for n in every:
                if n.startswith("tasks-"):
                    add(n, None)
        elif w == "mrtr":
            for n in every:
                if n.startswith("input-required-"):
                    add(n, "2026-07-28")
        elif w == "core" or w.startswith("core-"):
            at = w[5:] or spec or SPECS[-1]
            for n, specs in every.items():
                if at in specs:
                    add(n, at)
        elif w.startswith("required-"):
            for n in required(suite, w[9:]):
                add(n, w[9:])
        elif w == "all":
            for n, specs in every.items():
                if not specs and n.startswith("tasks-"):
                    add(n, None)
                for at in [spec] if spec else SPECS[1:]:
                    if at in specs:
                        add(n, at)
        elif w in every:
            specs = every[w]
            add(w, spec if spec in specs else (specs[-1] if specs else None))
        else:
            sys.exit(f"conformance: no scenario or group {w!r}")
    return picked


# ------------------------------------------------------------------------------------- running


def run_one(suite: list[str], url: str, name: str, spec: str | None, timeout: float) -> dict[str, Any]:
    began = time.time()
    with tempfile.TemporaryDirectory(prefix="conformance-") as tmp:
        cmd = [*suite, "server", "--url", url, "--scenario", name, "-o", tmp]
        if spec:
            cmd += ["--spec-version", spec]
        note, checks = "", []
        try:
            p = subprocess.run(cmd, capture_output=True, text=True, timeout=timeout)
            files = list(Path(tmp).rglob("checks.json"))
            if files:
                checks = json.loads(files[0].read_text())
            else:
                note = no_result(p)
        except subprocess.TimeoutExpired:
            note = f"timed out after {timeout:.0f} s"
    return {**judged(name, spec, checks, note), "seconds": round(time.time() - began, 1)}


def run_spec(suite: list[str], url: str, names: list[str], spec: str, timeout: float) -> list[dict[str, Any]]:
    """All that is not an extension, in one process of the suite: its start takes longer than most scenarios.

    They run one after the other.  One without a result has failed.
    """
    with tempfile.TemporaryDirectory(prefix="conformance-") as tmp:
        cmd = [*suite, "server", "--url", url, "--suite", "all", "--spec-version", spec, "-o", tmp]
        cmd += ["--timeout", str(round(timeout * 1000))]
        try:
            p = subprocess.run(cmd, capture_output=True, text=True, timeout=timeout * len(names))
            note = no_result(p)
        except subprocess.TimeoutExpired:
            note = f"no result after {timeout * len(names):.0f} s for all"
        res = []
        for name in names:
            files = list(Path(tmp).glob(f"server-{name}-20*/checks.json"))  # what follows is a date
            checks = json.loads(files[0].read_text()) if files else []
            res.append(judged(name, spec, checks, "" if files else note))
    return res


def no_result(ran: subprocess.CompletedProcess[str]) -> str:
    said = " ".join((ran.stdout + ran.stderr).split())[-200:]
    return f"no result (exit {ran.returncode}): {said}"


def judged(name: str, spec: str | None, checks: list[dict[str, Any]], note: str) -> dict[str, Any]:
    slim = [
        {
            "id": c["id"],
            "status": c["status"],
            **({"error": c["errorMessage"]} if c.get("errorMessage") else {}),
        }
        for c in checks
        if c["status"] != "INFO"
    ]
    count = {s: sum(c["status"] == s for c in slim) for s in ("SUCCESS", "FAILURE", "WARNING", "SKIPPED")}
    real = [c for c in slim if c["id"] not in BOOKKEEPING]
    if note or count["FAILURE"]:
        verdict = "FAIL"
    elif real and all(c["status"] == "SKIPPED" for c in real):
        verdict = "SKIP"
    elif not any(c["status"] == "SUCCESS" for c in real) and not any(c["status"] == "WARNING" for c in real):
        verdict, note = "FAIL", note or "nothing was checked"
    else:
        verdict = "PASS"
    return {
        "scenario": name,
        "spec": spec or "ext",
        "verdict": verdict,
        "counts": count,
        "checks": slim,
        "note": note,
    }


def reachable(url: str) -> bool:
    u = urllib.parse.urlsplit(url)
    try:
        with socket.create_connection(
            (u.hostname or "127.0.0.1", u.port or (443 if u.scheme == "https" else 80)), 5
        ):
            return True
    except OSError:
        return False


def run_all(url: str, a: argparse.Namespace) -> list[dict[str, Any]]:
    # Several checks come out SUCCESS or WARNING when nothing answers at all.
    if not reachable(url):
        sys.exit(f"conformance: nothing listens at {url}")
    suite = find_suite()
    todo = select(suite, a.scenario or ["tasks"], a.spec)
    every = scenarios(suite)
    res = []
    for at in SPECS:
        whole = [n for n, specs in every.items() if at in specs]
        if whole and {(n, at) for n in whole} <= set(todo):
            todo = [item for item in todo if item[1] != at]
            for r in run_spec(suite, url, whole, at, a.timeout):
                res.append(r)
                if not a.quiet:
                    show(r, a.verbose)
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, a.jobs)) as ex:
        jobs = [ex.submit(run_one, suite, url, n, s, a.timeout) for n, s in todo]
        for j in jobs:
            r = j.result()
            res.append(r)
            if not a.quiet:
                show(r, a.verbose)
    return res


def show(r: dict[str, Any], verbose: bool = False) -> None:
    c = r["counts"]
    extra = "".join(f" {k}={c[s]}" for k, s in (("warn", "WARNING"), ("skip", "SKIPPED")) if c[s])
    counted = f"{c['SUCCESS']:3} ok {c['FAILURE']:3} bad{extra}"
    took = f"  {r['seconds']:.1f}s" if "seconds" in r else ""
    print(f"{r['verdict']:4} {r['spec']:10} {r['scenario']:46} {counted}{took}", flush=True)
    if r["note"]:
        print(f"       {r['note']}")
    for k in r["checks"]:
        if k["status"] in (("FAILURE", "WARNING") if verbose else ("FAILURE",)):
            print(f"       {k['status'][:4]} {k['id']}: {' '.join(k.get('error', '').split())[:220]}")


def summary(res: list[dict[str, Any]], allow: list[str]) -> int:
    bad = [r for r in res if r["verdict"] == "FAIL" and r["scenario"] not in allow]
    allowed = [r["scenario"] for r in res if r["verdict"] == "FAIL" and r["scenario"] in allow]
    good = sum(r["verdict"] == "PASS" for r in res)
    skip = sum(r["verdict"] == "SKIP" for r in res)
    ck = sum(r["counts"]["SUCCESS"] for r in res), sum(r["counts"]["FAILURE"] for r in res)
    if allowed:
        print(f"allowed to fail: {', '.join(allowed)}")
    print(f"checks: {ck[0]} ok, {ck[1]} bad; scenarios skipped: {skip}")
    print(f"{good} passed, {len(bad)} failed")
    return 1 if bad or not res or not good else 0


# ------------------------------------------------------------------------------------- diff


def keyed(res: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, str]]:
    out: dict[tuple[str, str], dict[str, str]] = {}
    rank = {"SUCCESS": 0, "SKIPPED": 1, "WARNING": 2, "FAILURE": 3}
    for r in res:
        ids: dict[str, str] = {}
        for c in r["checks"]:  # ids repeat within a scenario: keep the worst
            if c["id"] not in ids or rank.get(c["status"], 0) > rank.get(ids[c["id"]], 0):
                ids[c["id"]] = c["status"]
        ids["(scenario)"] = {"PASS": "SUCCESS", "SKIP": "SKIPPED", "FAIL": "FAILURE"}[r["verdict"]]
        out[(r["scenario"], r["spec"])] = ids
    return out


def diff(a_res: list[dict[str, Any]], b_res: list[dict[str, Any]]) -> int:
    A, B = keyed(a_res), keyed(b_res)
    worse = better = same = 0
    for key in A:
        if key not in B:
            continue
        for cid in sorted(set(A[key]) | set(B[key])):
            x, y = A[key].get(cid, "absent"), B[key].get(cid, "absent")
            if x == y:
                same += 1
                continue
            if cid == "(scenario)":
                mark = ""
            elif x == "SUCCESS" and y in ("FAILURE", "WARNING", "absent"):
                # an absent check is only a loss if the scenario as a whole fails (ids can vary by path)
                lost = y != "absent" or B[key]["(scenario)"] == "FAILURE"
                mark, worse = ("WORSE", worse + 1) if lost else ("gone", worse)
            elif y == "SUCCESS" and x in ("FAILURE", "WARNING"):
                mark, better = "better", better + 1
            else:
                mark = "changed"
            if mark:
                print(f"{mark:8}{key[0]} [{key[1]}] {cid}: {x} -> {y}")
    print(f"{same} checks the same, {better} better, {worse} worse")
    common = len(set(A) & set(B))
    print(f"{common} scenarios compared: {'transparent' if common and not worse else 'NOT transparent'}")
    return 1 if worse or not common else 0


def load(what: str, a: argparse.Namespace) -> list[dict[str, Any]]:
    if re.match(r"https?://", what):
        return run_all(what, a)
    saved: list[dict[str, Any]] = json.loads(Path(what).read_text())["results"]
    return saved


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sub = p.add_subparsers(dest="cmd", required=True)
    for name in ("run", "diff", "list"):
        q = sub.add_parser(name)
        q.add_argument("-s", "--scenario", action="append")
        q.add_argument("--spec", choices=SPECS)
        q.add_argument("--timeout", type=float, default=90)
        q.add_argument("-j", "--jobs", type=int, default=1)
        q.add_argument("-v", "--verbose", action="store_true")
        q.add_argument("-q", "--quiet", action="store_true")
        if name == "run":
            q.add_argument("url")
            q.add_argument("--json")
            q.add_argument("--allow-fail", nargs="*", default=[])
        if name == "diff":
            q.add_argument("a")
            q.add_argument("b")
    a = p.parse_args()
    if a.cmd == "list":
        suite = find_suite()
        for g in (
            "tasks",
            "mrtr",
            "core-2025-06-18",
            "core-2025-11-25",
            "core-2026-07-28",
            "required-2025-11-25",
            "required-2026-07-28",
        ):
            print(g + ": " + " ".join(n for n, _ in select(suite, [g], None)))
        return 0
    if a.cmd == "run":
        res = run_all(a.url, a)
        if a.json:
            Path(a.json).write_text(json.dumps({"url": a.url, "results": res}, indent=1))
        return summary(res, a.allow_fail)
    return diff(load(a.a, a), load(a.b, a))


if __name__ == "__main__":
    sys.exit(main())
