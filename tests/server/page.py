"""The chat page as people meet it, in headless Chromium: page.py URL CHROMIUM [FOLDER for screenshots]. Exits 0 if all is as it should
be. The browser is driven over its debugging pipe, so Python needs nothing but itself."""
import base64
import json
import os
import select
import subprocess
import sys
import tempfile
import time
import urllib.request

URL, CHROMIUM = sys.argv[1].rstrip("/"), sys.argv[2]
FOLDER = sys.argv[3] if len(sys.argv) > 3 else None
PATIENCE = 120  # seconds; a busy machine under sanitizers is slow

TOOLS = [{"type": "function", "function": {"name": name, "description": text, "parameters": {
    "type": "object", "properties": {p: {"type": t} for p, t in properties.items()}, "required": list(properties)}}}
    for name, text, properties in (
        ("get_weather", "Weather of a city", {"city": "string"}),
        ("calculate", "Add two numbers", {"a": "integer", "b": "integer"}))]


class Browser:
    """One page. Commands go out on file 3 of the browser, answers and events come from its file 4, each closed by a zero byte."""

    def __init__(self, profile):
        to_read, self.to = os.pipe()
        self.back, back_write = os.pipe()
        arguments = [CHROMIUM, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
                     "--hide-scrollbars", "--user-data-dir=" + profile, "about:blank"]

        def files():
            os.dup2(to_read, 10)
            os.dup2(back_write, 11)
            os.dup2(10, 3)
            os.dup2(11, 4)

        self.process = subprocess.Popen(arguments, close_fds=False, preexec_fn=files, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, env={**os.environ, "HOME": profile})
        os.close(to_read)
        os.close(back_write)
        self.rest, self.n, self.session = b"", 0, None
        self.requests, self.complaints, self.page_headers = [], [], {}
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def read(self):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.back], [], [], PATIENCE)
            assert ready, "the browser says nothing"
            more = os.read(self.back, 1 << 20)
            assert more, "the browser has ended"
            self.rest += more
        one, self.rest = self.rest.split(b"\0", 1)
        return json.loads(one)

    def event(self, e):
        method, p = e.get("method"), e.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])
        elif method == "Network.responseReceived" and p["type"] == "Document":
            self.page_headers = {k.lower(): v for k, v in p["response"]["headers"].items()}
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(p["exceptionDetails"].get("exception", {}).get("description", p["exceptionDetails"]["text"]))
        elif method == "Log.entryAdded" and p["entry"]["level"] == "error":
            self.complaints.append(p["entry"]["text"])

    def call(self, method, **params):
        self.n += 1
        command = {"id": self.n, "method": method, "params": params, **({"sessionId": self.session} if self.session else {})}
        os.write(self.to, json.dumps(command).encode() + b"\0")
        while True:
            e = self.read()
            if e.get("id") == self.n:
                assert "error" not in e, (method, e["error"])
                return e["result"]
            self.event(e)

    def js(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in r, (expression, r["exceptionDetails"])
        return r["result"].get("value")

    def until(self, expression):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            value = self.js(expression)
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"never true: {expression}; the page says: {self.js('document.body.innerText')}")

    def type(self, text):
        self.call("Input.insertText", text=text)

    def key(self, key, modifiers=0, code=None):
        more = {"text": "\r"} if key == "Enter" and not modifiers else {}
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "O": 79}
        common = {"key": key, "code": code or key, "windowsVirtualKeyCode": codes[key], "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def open(self):
        self.js("window.before = true")
        self.call("Page.navigate", url=URL + "/")
        self.until("!window.before && document.readyState === 'complete' && document.querySelector('#model')?.textContent !== 'nibble'")

    def set(self, name, value):
        self.js(f"(e => {{ e.value = {json.dumps(value)}; e.dispatchEvent(new Event('change')); }})(document.getElementById('{name}'))")

    def picture(self, name):
        if FOLDER:
            data = self.call("Page.captureScreenshot", format="png")["data"]
            with open(os.path.join(FOLDER, name + ".png"), "wb") as f:
                f.write(base64.b64decode(data))

    def close(self):
        self.process.terminate()
        self.process.wait()


IDLE = "document.getElementById('send').textContent === 'Send'"


def last(selector=""):
    return f"[...document.querySelectorAll('#log article{selector}')].at(-1)"


def ask(b, text):
    b.js("document.getElementById('text').focus()")
    b.type(text)
    b.key("Enter")
    b.until(IDLE)


def metric(name):
    for line in urllib.request.urlopen(URL + "/metrics").read().decode().splitlines():
        if line.startswith(name):
            return float(line.split()[-1])
    raise AssertionError(name)


def check_answer(b):
    """An answer grows as it comes; thoughts are apart from it, and fold once it begins."""
    b.set("think", "low")
    b.js("window.grown = 0; new MutationObserver(() => window.grown++).observe(document.getElementById('log'), "
         "{subtree: true, characterData: true})")
    ask(b, "What is the capital of France?")
    assert b.js(last() + ".children[1].textContent") == "The capital of France is Paris."
    assert len(b.js(last() + ".querySelector('.thought').textContent")) > 5
    assert b.js(last() + ".querySelector('details').open") is False
    assert b.js("window.grown") >= 4, b.js("window.grown")
    assert " tokens" in b.js(last() + ".querySelector('.foot').textContent")
    b.js(last() + ".querySelector('summary').click()")
    b.picture("desktop")


def check_markup_is_text(b):
    ask(b, "<img src=x onerror=alert(1)><b>bold</b>")
    assert b.js("document.querySelectorAll('#log img, #log article > b').length") == 0
    assert b.js("[...document.querySelectorAll('#log .user')].at(-1).textContent") == "<img src=x onerror=alert(1)><b>bold</b>"


def check_again(b):
    b.key("O", modifiers=2 | 8, code="KeyO")
    assert b.js("document.querySelectorAll('#log .user').length") == 0
    ask(b, "What is 37 - 23?")
    before = b.js(last() + ".children[1].textContent")
    b.set("temperature", "0")
    b.js(last() + ".querySelector('.again').click()")
    b.until(IDLE)
    assert b.js(last() + ".children[1].textContent") == "37 - 23 = 14." and before, before
    assert b.js("document.querySelectorAll('#log article').length") == 2


def check_tools(b):
    b.key("O", modifiers=2 | 8, code="KeyO")
    b.set("tools", json.dumps(TOOLS))
    ask(b, "What is the weather in Rome?")
    assert b.js(last() + ".querySelector('.call b').textContent") == "get_weather"
    assert b.js(last() + ".querySelector('dt').textContent + '=' + " + last() + ".querySelector('dd').textContent") == "city=Rome"
    b.until("document.activeElement.getAttribute('aria-label') === 'Result of get_weather'")
    b.type('{"temperature": 21, "sky": "sunny"}')
    b.picture("tools")
    b.key("Enter")
    b.until(IDLE)
    assert "21" in b.js(last() + ".children[1].textContent")
    b.set("tools", "[{")
    ask(b, "Hello")
    assert "tools" in b.js(last(".error") + ".textContent")
    b.set("tools", "")


def check_stop(b):
    """Escape at the first piece of an answer ends it, here and in the server."""
    b.key("O", modifiers=2 | 8, code="KeyO")
    b.set("think", "max")
    aborted = 'vllm:request_success_total{model_name="tiny-v4",engine="0",finished_reason="abort"}'
    before = metric(aborted)
    b.js("new MutationObserver((_, o) => { o.disconnect(); dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'})); })"
         ".observe(document.getElementById('log'), {subtree: true, characterData: true})")
    ask(b, "Tell me a long story.")
    assert "stopped" in b.js(last() + ".querySelector('.foot').textContent")
    end = time.monotonic() + PATIENCE
    while metric(aborted) == before and time.monotonic() < end:
        time.sleep(0.05)
    assert metric(aborted) == before + 1
    b.set("think", "low")


def check_errors(b):
    b.key("O", modifiers=2 | 8, code="KeyO")
    b.set("temperature", "9")
    ask(b, "What is 37 - 23?")
    assert "temperature" in b.js(last(".error") + ".textContent")
    b.set("temperature", "0")
    b.js(last() + ".querySelector('.again').click()")
    b.until(IDLE)
    assert b.js(last() + ".children[1].textContent") == "37 - 23 = 14."
    assert b.js("document.querySelectorAll('#log .error').length") == 0


def check_keyboard(b):
    """To the settings and back without a mouse, and what was set is there after the page is loaded again."""
    b.js("document.getElementById('text').focus()")
    b.key("Tab")
    b.until("document.activeElement.id === 'send'")
    b.js("document.getElementById('new').focus()")
    b.key("Tab")
    b.until("document.activeElement.id === 'settings'")
    b.key("Enter")
    b.until("document.getElementById('dialog').open && document.activeElement.id === 'system'")
    b.picture("settings")
    b.key("Escape")
    b.until("!document.getElementById('dialog').open && document.activeElement.id === 'text'")
    b.js("document.getElementById('text').focus()")
    b.type("one")
    b.key("Enter", modifiers=8)
    assert b.js("document.querySelectorAll('#log .user').length") == 1, "Shift+Enter sent the message"
    b.js("document.getElementById('text').value = ''")
    b.set("system", "Be brief.")
    b.open()
    assert b.js("document.getElementById('system').value") == "Be brief." and b.js("document.getElementById('key').value") == ""
    b.set("system", "")


def contrast(b, of, on):
    """WCAG's ratio between a colour of one element and the background of another."""
    def light(selector, which):
        rgb = b.js(f"getComputedStyle(document.querySelector({json.dumps(selector)})).{which}")
        values = [int(v) / 255 for v in rgb[rgb.index("(") + 1:-1].split(",")[:3]]
        r, g, bl = (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
        return 0.2126 * r + 0.7152 * g + 0.0722 * bl
    x, y = sorted((light(of, "color"), light(on, "backgroundColor")))
    return (y + 0.05) / (x + 0.05)


def check_colours(b):
    background = "getComputedStyle(document.body).backgroundColor"
    ask(b, "What is the capital of Japan?")
    for scheme, colour in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(22, 23, 26)")):
        b.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        b.until(f"{background} === '{colour}'")
        for of, on in (("body", "body"), ("summary", "body"), (".foot", "body"), ("#send", "#send"), (".user", ".user")):
            assert contrast(b, of, on) >= 4.5, (scheme, of, contrast(b, of, on))
        b.picture(scheme)
    b.set("theme", "light")
    assert b.js(background) == "rgb(255, 255, 255)", "the setting does not win"
    b.set("theme", "")


def check_phone(b):
    b.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
    b.call("Emulation.setTouchEmulationEnabled", enabled=True)
    b.open()
    assert b.js("touch") is True
    b.js("document.getElementById('text').focus()")
    b.type("What is the capital of " + "France" * 20 + "?")
    b.key("Enter")
    assert b.js("document.querySelectorAll('#log .user').length") == 0, "Enter of a screen keyboard sent the message"
    b.js("document.getElementById('send').click()")
    b.until(IDLE)
    assert b.js("document.documentElement.scrollWidth") <= 360 and b.js("document.querySelector('#log').scrollWidth") <= 360
    assert b.js("[...document.querySelectorAll('header button, footer button, footer textarea')].every(e => "
                "{ const r = e.getBoundingClientRect(); return r.height >= 44 && r.left >= 0 && r.right <= 360 && r.bottom <= 740; })")
    b.picture("phone")
    b.js("document.getElementById('settings').click()")
    assert b.js("document.getElementById('dialog').getBoundingClientRect().right") <= 360
    b.picture("phone-settings")
    b.js("document.getElementById('dialog').close()")


def check_origin(b):
    """All that was asked for came from the server itself, and its header forbids everything else."""
    away = [u for u in b.requests if not u.startswith((URL + "/", "data:"))]
    assert not away and len(b.requests) > 10, away
    policy = b.page_headers["content-security-policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy, policy
    elsewhere = ("http://127.0.0.2:1/", "https://a.example/")
    for address in elsewhere:
        assert b.js(f"fetch('{address}').then(() => 'sent', () => 'not sent')") == "not sent"
    refused = [c for c in b.complaints if "Content Security Policy" in c]
    assert all(any(address in c for c in refused) for address in elsewhere), b.complaints
    # A 400 that was provoked is logged as an error too; nothing else is to be.
    rest = [c for c in b.complaints if c not in refused and "400" not in c]
    assert not rest, rest


with tempfile.TemporaryDirectory() as profile:
    browser = Browser(profile)
    try:
        browser.call("Emulation.setDeviceMetricsOverride", width=1100, height=760, deviceScaleFactor=1, mobile=False)
        browser.open()
        for check in (check_answer, check_markup_is_text, check_again, check_tools, check_stop, check_errors, check_keyboard,
                      check_colours, check_phone, check_origin):
            check(browser)
            print("ok", check.__name__, flush=True)
    finally:
        browser.close()
