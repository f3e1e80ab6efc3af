"""The page of runs in a browser: opened, drawn, and without complaints."""

from contextlib import contextmanager

from tests.browser import PATIENCE_MS

DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


@contextmanager
def opened(browser, address, viewport=DESKTOP, scheme="light", lax=False):
    """The page with its curves drawn; whatever the console complains of fails the test.

    Where `lax`, a test may run scripts of its own in it.
    """
    context = browser.new_context(viewport=viewport, color_scheme=scheme, bypass_csp=lax)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    complaints = []
    page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(request.url))
    page.goto(address)
    page.wait_for_selector("#chart-loss path.mean")
    page.wait_for_selector("body[data-drawn]")
    yield page
    said = list(complaints)  # what leaving the page cuts off is no complaint
    context.close()
    assert said == []
