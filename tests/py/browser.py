"""Opens a page in a real headless Chromium and says what happened, as JSON on standard output.

    browser.py CHROMIUM PAGE OUT WORD

Speaks the DevTools protocol over two pipes (no port is opened). Writes OUT/desktop.png, OUT/phone.png, OUT/print.png and
OUT/print.pdf; types WORD into the page's filter box, letter by letter; collects what the console says, exceptions, and every
request that is not for the page itself.
"""

import base64
import fcntl
import json
import os
import select
import subprocess
import sys
import tempfile
import time

FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-background-networking --disable-component-update
--disable-sync --no-first-run --disable-extensions --disable-default-apps --hide-scrollbars --disable-dev-shm-usage
--remote-debugging-pipe --mute-audio --force-color-profile=srgb""".split()


class Browser:
    def __init__(self, program, profile):
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()
        # Numbers that no other pipe has, so that nothing is overwritten on the way to 3 and 4.
        child_in = fcntl.fcntl(to_read, fcntl.F_DUPFD, 20)
        child_out = fcntl.fcntl(from_write, fcntl.F_DUPFD, 20)

        def pipes():
            os.dup2(child_in, 3)
            os.dup2(child_out, 4)

        self.process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=pipes, pass_fds=(3, 4), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True)
        for fd in (to_read, from_write, child_in, child_out):
            os.close(fd)
        self.out, self.into, self.rest, self.sent = to_write, from_read, b"", 0
        self.events, self.session = [], None

    def message(self, deadline):
        while b"\0" not in self.rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.into], [], [], left)[0]:
                raise TimeoutError("Chromium does not answer")
            more = os.read(self.into, 1 << 20)
            if not more:
                raise EOFError("Chromium ended")
            self.rest += more
        one, self.rest = self.rest.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, **params):
        self.sent += 1
        request = {"id": self.sent, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        text = json.dumps(request).encode() + b"\0"
        while text:
            text = text[os.write(self.out, text):]
        deadline = time.monotonic() + 60
        while True:
            answer = self.message(deadline)
            if answer.get("id") == self.sent:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def until(self, name):
        deadline = time.monotonic() + 60
        while not any(e.get("method") == name for e in self.events):
            self.events.append(self.message(deadline))

    def value(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def size(self, width, height, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def shot(self, path):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))

    def close(self):
        try:
            self.session = None
            self.call("Browser.close")
        except Exception:
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
            self.process.wait()


VISIBLE = """[...document.querySelectorAll('[data-f]')].filter(e => !e.classList.contains('hide')).length"""


def main():
    program, page, out, word = sys.argv[1:]
    url = "file://" + os.path.abspath(page)
    with tempfile.TemporaryDirectory(prefix="squire-chromium-", ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            print(json.dumps(look(browser, url, out, word)))
        finally:
            browser.close()


def look(browser, url, out, word):
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    browser.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        browser.call(f"{domain}.enable")
    browser.size(1280, 900)
    browser.call("Page.navigate", url=url)
    browser.until("Page.loadEventFired")
    said = {"lines": browser.value(VISIBLE), "title": browser.value("document.title")}
    browser.shot(f"{out}/desktop.png")
    browser.size(390, 844, mobile=True)
    said["phone_overflow"] = browser.value("document.documentElement.scrollWidth - innerWidth")
    browser.shot(f"{out}/phone.png")
    browser.size(794, 1123)
    browser.call("Emulation.setEmulatedMedia", media="print")
    said["print_filter"] = browser.value("getComputedStyle(document.getElementById('filter')).display")
    browser.shot(f"{out}/print.png")
    pdf = browser.call("Page.printToPDF", printBackground=True)["data"]
    with open(f"{out}/print.pdf", "wb") as f:
        f.write(base64.b64decode(pdf))
    browser.call("Emulation.setEmulatedMedia", media="")
    browser.size(1280, 900)
    browser.call("Runtime.evaluate", expression="document.getElementById('q').focus()")
    for letter in word:
        browser.call("Input.dispatchKeyEvent", type="keyDown", text=letter)
        browser.call("Input.dispatchKeyEvent", type="keyUp")
    said["filtered"] = browser.value(VISIBLE)
    said["status"] = browser.value("document.getElementById('shown').textContent")
    said["injected"] = browser.value("String(window.injected)")
    events = browser.events
    said["console"] = [e["params"] for e in events if e.get("method") in (
        "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")]
    requests = [e["params"]["request"]["url"] for e in events if e.get("method") == "Network.requestWillBeSent"]
    said["requests"] = [r for r in requests if r != url and not r.startswith("data:")]
    return said


main()
