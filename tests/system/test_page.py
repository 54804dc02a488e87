"""The operators' page in a browser: against a server under load, and against made-up documents."""

import itertools
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Browser, Page, expect
from prometheus_client.parser import text_string_to_metric_families

from examples.digits.build import DATA, build_repository
from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.page.browser import chromium, watched
from tests.support.page.documents import document
from tests.support.page.server import DocumentServer
from tests.support.tools import require_tool

ROOT = Path(__file__).parents[2]
SIZES = {390: 844, 768: 1024, 1280: 800}
WINDOW_S = 10
"""The strip's rates are of this time."""
HOUR_S = 3600
ATTEMPTS = 3
FOCUSED = """(() => {
  const at = document.activeElement;
  if (at === document.body) return "";
  const ringed = getComputedStyle(at).outlineStyle !== "none" || at.name === "window";
  return (at.id || at.className || at.name) + (ringed ? "" : " without a ring");
})()"""
HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
FEED = """
class Source { constructor(url) { this.url = url; window.source = this; } close() {} }
window.EventSource = Source;
window.fetch = () => new Promise(() => {});
const zero = Date.now();
window.passed = 0;
Date.now = () => zero + window.passed * 1000;
"""
"""Replaces the stream and the clock of the page: what a test pushes is all that comes."""
PUSH = """async ([text, ticks, each]) => {
  for (let tick = 0; tick < ticks; tick += 1) {
    window.passed += 1;
    const found = JSON.parse(text);
    const { server, pipeline, timeline, troubles } = found;
    server.now_s += window.passed;
    const { history } = pipeline;
    history.start_s = Math.floor(server.now_s);
    for (const name of ["good", "late", "refused", "failed", "cancelled", "p50_ms", "p99_ms"]) {
      history[name] = [history[name][window.passed % history[name].length]];
    }
    timeline.from_s += window.passed;
    timeline.to_s += window.passed;
    timeline.bars.forEach((bar, index) => { bar[0] = window.passed * 1000 + index; });
    troubles.forEach((trouble, index) => { trouble.id = `r-${window.passed + index}`; });
    if (window.passed % 3600 === 0) timeline.models[0] = `model-${window.passed}:1`;
    window.source.onmessage({ data: JSON.stringify(found) });
    if (tick % each === 0) await new Promise(requestAnimationFrame);
  }
  // The last document is drawn in the next frame.
  await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium(require_tool("chromium")) as found:
        yield found


@pytest.fixture
def made_up() -> Iterator[DocumentServer]:
    with serving() as server:
        yield server


@contextmanager
def serving(port: int = 0) -> Iterator[DocumentServer]:
    server = DocumentServer(port)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("page") / "models"
    build_repository(found, wide=False)
    return found


@contextmanager
def load(server: GatewayServer, model: str, rate: int, slo_ms: float) -> Iterator[None]:
    """Traffic from loadgen while the block runs."""
    command = (
        *(sys.executable, "-m", "sluice.loadgen.cli.main", "run", "--target", f"http://{server.http_url}"),
        *("--model", model, "--rate", str(rate), "--duration", "600", "--slo-ms", str(slo_ms)),
        *("--samples", str(DATA), "--subset", "test", "--labels", "y"),
    )
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def number(page: Page, id: str) -> float:
    text = page.locator(f"#{id}").inner_text().replace(",", "").split()[0]
    return float(text) if text[0].isdigit() else 0.0


def counted(server: GatewayServer, name: str, **labels: str) -> float:
    """The sum of a counter's samples with these labels."""
    text = server.request("GET", "/metrics")[2].decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def rates_of_ten_seconds(page: Page, server: GatewayServer) -> tuple[float, float]:
    """Requests, and rows of the cascade's last stage, a second by /metrics, within the window of the page."""
    requests, rows = "sluice_requests_total", "sluice_stage_rows_total"
    before = [counted(server, requests), counted(server, rows, pipeline="digits-cascade:1", stage="large")]
    began = time.monotonic()
    page.wait_for_timeout(WINDOW_S * 1000)
    after = [counted(server, requests), counted(server, rows, pipeline="digits-cascade:1", stage="large")]
    took_s = time.monotonic() - began
    return (after[0] - before[0]) / took_s, (after[1] - before[1]) / took_s


def test_it_shows_what_a_server_under_load_does(browser: Browser, repository: Path, tmp_path: Path) -> None:
    config = {"partitions": 2, "prices": {"core_hour": 0.05}}
    with gateway_server(repository, tmp_path, config) as server, load(server, "digits-cascade", 60, 500):
        url = f"http://{server.http_url}/"
        with watched(browser, url) as seen:
            page = seen.page
            expect(page.locator("#chosen-name")).to_have_text("digits-cascade:1")
            # Counts of /metrics from one tick to another are what the page shows then, within what a tick may differ.
            until(lambda: number(page, "rate") > 40)
            for attempt in range(ATTEMPTS):  # where the machine stands still, a tick differs by more
                rate, large = rates_of_ten_seconds(page, server)
                shown = number(page, "rate")
                (rows_shown,) = re.findall(r"([\d,]+(?:\.\d)?) rows/s", page.locator(".card").nth(2).inner_text())
                if attempt == ATTEMPTS - 1 or abs(shown - rate) < 1 + 2 * rate / WINDOW_S:
                    break
            assert shown == pytest.approx(rate, abs=1 + 2 * rate / WINDOW_S)
            assert float(rows_shown) == pytest.approx(large, abs=1 + 3 * rate / WINDOW_S)
            cards = page.locator(".card")
            assert [card.split("\n")[0] for card in cards.all_inner_texts()] == ["prep", "small", "large"]
            assert "max of probs below 0.9" in cards.nth(2).inner_text()
            assert page.locator("#choices [role=option]").count() == 7
            assert page.locator(".lane").count() == 2
            painted = "[...document.querySelectorAll('.bars')].map(each => each.toDataURL().length)"
            assert max(page.evaluate(painted)) > 1000

            # Another pipeline is chosen by keys, and its late requests are explained.
            with load(server, "digits-ensemble", 40, 0.01):
                page.keyboard.press("/")
                page.keyboard.type("ensemble")
                page.keyboard.press("Enter")
                expect(page.locator("#chosen-name")).to_have_text("digits-ensemble:1")
                expect(page.locator(".card").last).to_contain_text("combiner: mean")
                row = page.locator("#troubles-rows tr", has_text="digits-ensemble:1").first
                row.locator("button").click()
                dialog = page.locator("#dialog")
                expect(dialog.locator(".sentence")).to_contain_text("It ")
                id = dialog.locator("h2").inner_text().removeprefix("Request ")
                said = json.loads(server.request("GET", f"/v2/sluice/requests/{id}")[2])
                assert dialog.locator(".sentence").inner_text() == said["sentence"]
                page.keyboard.press("Escape")
                expect(dialog).to_be_hidden()
            assert (seen.said, seen.off_host(url)) == ([], [])


def test_it_outlives_its_server(browser: Browser, repository: Path, tmp_path: Path) -> None:
    config = {"partitions": 1, "control": "explicit"}
    options = ("--repository", str(repository), "--load-model")
    with (
        gateway_server(None, tmp_path, config, (*options, "prep")) as server,
        watched(browser, f"http://{server.http_url}/") as seen,
    ):
        page = seen.page
        expect(page.locator("#state")).to_have_text("ready")
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        expect(page.locator("#state")).to_have_text("no connection")
        expect(page.locator("#said")).to_contain_text("no connection")
        expect(page.locator("#reasons")).to_contain_text("the server cannot be reached; next try in")
        expect(page.locator("#age")).to_have_text(re.compile(r"data is \d+.s old"))
        with gateway_server(None, tmp_path, config, (*options, "logreg", "--http-port", str(server.http_port))):
            expect(page.locator("#chosen-name")).to_have_text("logreg:1")
            expect(page.locator("#age")).to_have_text(re.compile("live"))
            expect(page.locator("#state")).to_have_text("ready")


@pytest.mark.parametrize(
    ("situation", "scheme"),
    [
        *(("overload", "light"), ("overload", "dark"), ("long", "light")),
        *(("crowded", "dark"), ("lost", "light"), ("empty", "dark")),
    ],
)
def test_nothing_is_wider_than_the_window(
    browser: Browser, made_up: DocumentServer, situation: str, scheme: str
) -> None:
    made_up.situation = situation
    with watched(browser, made_up.url, scheme=scheme) as seen:
        for width, height in SIZES.items():
            seen.page.set_viewport_size({"width": width, "height": height})
            seen.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            assert (width, seen.overflow()) == (width, 0)
        seen.page.set_viewport_size({"width": 1360, "height": 760})
        assert seen.page.evaluate("document.documentElement.scrollHeight") == 760
        if situation in {"overload", "lost"}:  # all rows of the plan can be read, below a strip that gives reasons
            hidden = "(each => each.scrollHeight - each.clientHeight)(document.querySelector('#plan .scroll'))"
            assert seen.page.evaluate(hidden) == 0
        back = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert back == {"light": "rgb(243, 245, 248)", "dark": "rgb(13, 17, 23)"}[scheme]
        assert (seen.said, seen.off_host(made_up.url)) == ([], [])


def test_states_have_words_and_moods(browser: Browser, made_up: DocumentServer) -> None:
    with watched(browser, made_up.url) as seen:
        strip, state, said = (seen.page.locator(id) for id in ("#strip", "#state", "#said"))
        for situation, word, mood, reason in (
            ("lost", "degraded", "bad", "partition cpu1 is down"),
            ("overload", "overloaded", "bad", "requests are refused"),
            ("ready", "ready", "calm", ""),
        ):
            made_up.situation = situation
            expect(state).to_have_text(word)
            expect(strip).to_have_attribute("data-mood", mood)
            expect(said).to_contain_text(f"Sluice: {word}")
            expect(said).to_contain_text(reason)
            if reason:
                expect(seen.page.locator("#reasons")).to_contain_text(reason)
        # The one live region speaks of the state only: it is not written with each document.
        changes = "new Promise(done => { let n = 0; new MutationObserver(() => n++).observe("
        changes += "document.getElementById('said'), {childList: true, characterData: true, subtree: true});"
        assert seen.page.evaluate(changes + "setTimeout(() => done(n), 2500); })") == 0
        assert seen.page.locator("[aria-live]").count() == 1


def test_red_is_what_misses_its_objective(browser: Browser, made_up: DocumentServer) -> None:
    first = document("ready", int(time.time()))
    first["pipeline"].update(percentile=95)
    first["pipeline"]["plan"].update(predicted_p50_ms=0.5, seen_p50_ms=3.7, seen_p99_ms=60.0)
    first["pipeline"]["plan"]["stages"][1].update(predicted_ms=1.0, seen_ms=1.5)
    first["pipelines"][0].update(percentile=95, in_time=0.96, p99_ms=60.0)
    first["pipelines"][1].update(percentile=99, in_time=0.96)
    with watched_offline(browser, made_up, first) as page:
        rows = page.locator("#plan-rows tr")
        expect(rows.first).to_contain_text("7.4")
        assert [row.get_attribute("data-off") for row in rows.all()[:4]] == ["false", "false", "false", "true"]
        choices = page.locator(".choice").all()[:2]
        assert [each.get_attribute("data-bad") for each in choices] == ["false", "true"]


def test_the_plan_says_who_made_it_and_what_it_fixed(browser: Browser, made_up: DocumentServer) -> None:
    first = document("ready", int(time.time()))
    plan = first["pipeline"]["plan"]
    plan["planner"] = "infless"
    plan["stages"][0]["rule"] = {"rule": "fixed", "rows": 4, "kind": "cpu1", "wait_ms": 2.5}
    plan["stages"][1]["rule"] = {"rule": "search", "share": 0.4}
    with watched_offline(browser, made_up, first) as page:
        expect(page.locator("#plan-built")).to_contain_text("made by infless 10")
        titles = [row.locator("td").first.get_attribute("title") for row in page.locator("#plan-rows tr").all()[2:5]]
        assert titles == [
            "until the next plan: 4 rows on cpu1, or fewer after 2.50\u00a0ms",
            "searched again for each batch, within 40\u00a0% of the time that is left",
            "",
        ]


def test_troubles_that_may_not_be_seen_are_not_said_to_be_none(browser: Browser, made_up: DocumentServer) -> None:
    first = {**document("ready", int(time.time())), "troubles": []}
    with watched_offline(browser, made_up, first) as page:
        expect(page.locator("#troubles-none")).to_have_text("None lately.")
        page.evaluate("text => source.onmessage({ data: text })", json.dumps({**first, "troubles_open": False}))
        expect(page.locator("#troubles-none")).to_contain_text("group 'explain'")


def test_a_headroom_that_what_is_seen_contradicts_is_in_doubt(browser: Browser, made_up: DocumentServer) -> None:
    first = document("ready", int(time.time()))
    with watched_offline(browser, made_up, first) as page:
        expect(page.locator("#headroom")).to_have_attribute("data-tight", "false")
        expect(page.locator("#headroom-text")).to_have_text("headroom; highest rate 810/s")
        first["pipelines"][0].update(requests_per_s=200.0, refused_per_s=20.0)
        page.evaluate("text => window.source.onmessage({ data: text })", json.dumps(first))
        expect(page.locator("#headroom")).to_have_attribute("data-tight", "true")
        expect(page.locator("#headroom-text")).to_contain_text(re.compile("by the plan, yet 10.0.% are refused"))


def test_the_first_step_which_is_longer_than_a_second_is_no_burst(browser: Browser, made_up: DocumentServer) -> None:
    first = document("ready", int(time.time()))
    history = first["pipeline"]["history"]
    history.update({name: history[name][:3] for name in history if isinstance(history[name], list)})
    history["good"] = [30, 20, 21]
    with watched_offline(browser, made_up, first) as page:
        expect(page.locator("#outcomes-text")).to_contain_text("good: now 21, between 20 and 21")


def test_fifty_pipelines_are_found_by_their_names(browser: Browser, made_up: DocumentServer) -> None:
    made_up.situation = "crowded"
    with watched(browser, made_up.url) as seen:
        page = seen.page
        options = page.locator("#choices [role=option]")
        expect(options).to_have_count(50)
        expect(page.locator("#pipelines-note")).to_contain_text("14 more pipelines")
        page.locator("#filter").fill("recommender-4")
        expect(options).to_have_count(11)
        expect(page.locator("#pipelines-count")).to_have_text("11 of 64")
        page.locator("#filter").press("ArrowDown")
        page.keyboard.press("End")
        expect(page.locator("#chosen-name")).to_have_text("team-0-recommender-49:1")
        assert page.evaluate("decodeURIComponent(location.hash)") == "#team-0-recommender-49:1"
        page.locator("#filter").fill("no such name")
        expect(page.locator("#pipelines-note")).to_have_text("No name has this in it.")
        expect(page.locator("#not-served-count")).to_have_text("1,000 models")


def test_everything_can_be_reached_and_done_with_keys(browser: Browser, made_up: DocumentServer) -> None:
    with watched(browser, made_up.url) as seen:
        page = seen.page
        reached: list[str] = []
        for _ in range(40):
            page.keyboard.press("Tab")
            at = page.evaluate(FOCUSED)
            if not at or at in reached[:1]:
                break
            reached.append(at)
        assert [each for each in reached if "without a ring" in each] == []
        wanted = ["skip", "filter", "choice", "graph-view", "window", "link", "bars", "link cut"]
        assert [each for each in dict.fromkeys(reached) if each in wanted] == wanted

        lane = page.locator(".bars").first
        lane.focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#tip")).to_be_visible()
        expect(page.locator("#held")).to_be_visible()
        assert re.search(r":1, \d rows?", lane.get_attribute("aria-valuetext") or "")
        page.keyboard.press("Escape")
        expect(page.locator("#tip")).to_be_hidden()
        page.locator(".lane .link").first.press("Enter")
        expect(page.locator("#dialog")).to_contain_text("Holds 3 models")
        page.keyboard.press("Escape")
        expect(page.locator("#dialog")).to_be_hidden()


def test_screen_readers_get_landmarks_tables_and_words(browser: Browser, made_up: DocumentServer) -> None:
    with watched(browser, made_up.url) as seen:
        page = seen.page
        for role in ("banner", "navigation", "main", "status"):
            assert page.get_by_role(role).count() == 1
        expect(page.locator("#outcomes-text")).to_contain_text("good: now ")
        expect(page.locator("#latencies-text")).to_contain_text("p99: now ")
        stages = page.get_by_role("table", name="Stages of the pipeline")
        assert stages.get_by_role("row").nth(3).inner_text().split("\t")[:4] == [
            "large",
            "rf1024:1",
            "prep",
            "small: max of probs below 0.9",
        ]
        for table in page.locator("table").all():
            assert table.locator("caption").count() == 1
            assert table.locator("thead th:not([scope=col])").count() == 0
            assert table.locator("tbody tr > :first-child:not([scope=row])").count() == 0


@pytest.mark.parametrize("width", [1360, 390])
def test_stages_come_after_their_sources_and_do_not_cover_each_other(
    browser: Browser, made_up: DocumentServer, width: int
) -> None:
    for pipeline, order in (
        ("digits-cascade:1", ["request", "prep", "small", "large", "answer"]),
        ("digits-ensemble:1", ["request", "prep", "forest", "vote", "answer"]),
    ):
        with watched(browser, f"{made_up.url}#{pipeline}", (width, 844)) as seen:
            expect(seen.page.locator("#chosen-name")).to_have_text(pipeline)
            boxes = {}
            for card in seen.page.locator(".card, .end").all():
                box = card.bounding_box()
                assert box is not None
                boxes[card.inner_text().split("\n")[0]] = box
            places = [boxes[name]["x"] if width == 1360 else boxes[name]["y"] for name in order]
            assert places == sorted(set(places))
            for one, other in itertools.combinations(boxes.values(), 2):
                beside = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
                assert beside or one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"]


def test_requests_follow_where_a_stream_does_not_come_through(browser: Browser, made_up: DocumentServer) -> None:
    made_up.streams = False
    with watched(browser, made_up.url) as seen:
        expect(seen.page.locator("#age")).to_have_text("live, by requests")
        # The next requests ask only for what is new.
        with seen.page.expect_request(lambda request: "bars_since=" in request.url):
            pass
        made_up.streams = True
        expect(seen.page.locator("#age")).to_have_text("live")


def test_what_a_proxy_holds_back_is_said_to_be_old(browser: Browser, made_up: DocumentServer) -> None:
    first = document("ready", int(time.time()))
    with watched_offline(browser, made_up, first) as page:
        expect(page.locator("#age")).to_have_text("live")
        # Twelve seconds later comes what the server said after one second.
        first["server"]["now_s"] += 1
        page.evaluate("text => { passed += 12; source.onmessage({ data: text }); }", json.dumps(first))
        expect(page.locator("#age")).to_have_text(re.compile(r"data is 11.s old"))
        expect(page.locator("body")).to_have_attribute("data-stale", "true")


def test_a_page_that_nobody_sees_stops_asking(browser: Browser, made_up: DocumentServer) -> None:
    with watched(browser, made_up.url) as seen:
        page = seen.page
        page.clock.install()
        page.evaluate(HIDE, True)
        page.clock.run_for(59_000)
        expect(page.locator("#age")).to_have_text(re.compile("live"))
        page.clock.run_for(2_000)
        until(lambda: made_up.viewers == 0)
        asked = len(seen.asked)
        page.clock.run_for(30_000)
        expect(page.locator("#age")).to_have_text(re.compile("data is .* old"))
        assert len(seen.asked) == asked
        page.evaluate(HIDE, False)
        until(lambda: made_up.viewers == 1)


def test_half_a_day_of_ticks_makes_nothing_grow(browser: Browser, made_up: DocumentServer) -> None:
    first = document("ready", int(time.time()))
    first["timeline"]["bars"] = first["timeline"]["bars"][-30:]
    text = json.dumps(first)
    with watched_offline(browser, made_up, first) as page:
        session = page.context.new_cdp_session(page)

        def used() -> tuple[float, float]:
            # One collection may leave nodes that a script, a style or the renderer still held when it began.
            collected = []
            for _ in range(5):
                page.evaluate("() => new Promise(requestAnimationFrame)")
                session.send("HeapProfiler.collectGarbage")
                nodes = session.send("Memory.getDOMCounters")["nodes"]
                collected.append((nodes, session.send("Runtime.getHeapUsage")["usedSize"]))
            return min(collected)

        # All documents are taken in, and one of some is drawn.
        page.evaluate(PUSH, [text, HOUR_S, 400])
        nodes, heap = used()
        page.evaluate(PUSH, [text, 11 * HOUR_S, 400])
        later_nodes, later_heap = used()
        assert later_nodes <= nodes + 20
        assert later_heap <= heap + 500_000


@contextmanager
def watched_offline(browser: Browser, server: DocumentServer, first: object) -> Iterator[Page]:
    """The page with documents from the test instead of from the server."""
    context = browser.new_context(viewport={"width": 1360, "height": 760})
    try:
        context.add_init_script(FEED)
        page = context.new_page()
        page.goto(server.url)
        until(lambda: page.evaluate("'source' in window"))
        page.evaluate("text => window.source.onmessage({ data: text })", json.dumps(first))
        yield page
    finally:
        context.close()
