"""Makes the planner's page that needs no server: `python docs/standalone_planner.py PYODIDE OUT`.

PYODIDE is the folder that `npm pack pyodide` leaves in its archive. The page holds that Python and
our planner, packed, and opens from a disk. The site's build makes it where STEPLADDER_PYODIDE names
the folder.
"""

from __future__ import annotations

import base64
import gzip
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import stepladder
from stepladder.cli.planner_page.server import read_page

ROOT = Path(stepladder.__file__).parents[1]
SOURCE = Path(__file__).parent / "scripts" / "standalone_source.js"
PARTS = (
    "pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json",
)  # fmt: skip
NEEDED = """
import sys
import stepladder.cli.planner_page.answers
found = [m.__file__ for name, m in sys.modules.items() if name.partition(".")[0] == "stepladder"]
print("\\n".join(found))
"""


def main(pyodide: Path, out: Path) -> None:
    page = {name: text.decode() for name, text in read_page().items()}
    html = page["index.html"]
    for name in ("palette.css", "page.css", "planner.css"):
        html = html.replace(
            f'<link rel="stylesheet" href="{name}">', f"<style>\n{page[name]}</style>"
        )
    html = html.replace("icon.svg", data_url(page["icon.svg"], "image/svg+xml"))
    parts = {name: (pyodide / name).read_bytes() for name in PARTS}
    parts["stepladder.zip"] = planner_zip()
    packed = "".join(
        f'<script type="text/plain" id="part-{name}">{pack(content)}</script>\n'
        for name, content in parts.items()
    )
    script = '<script type="module" src="planner.js"></script>'
    assert script in html
    html = html.replace(script, "")
    maps = {"drawing": page["drawing.js"], "planner_source": SOURCE.read_text()}
    imports = ", ".join(
        f'"./{name}.js": "{data_url(text, "text/javascript")}"' for name, text in maps.items()
    )
    scripts = (
        f'<script type="importmap">{{"imports": {{{imports}}}}}</script>\n'
        f'<script type="module">\n{page["planner.js"]}</script>\n'
    )
    out.write_text(html.replace("</body>", f"{packed}{scripts}</body>"))


def planner_zip() -> bytes:
    """What the answers import of this library, and nothing else."""
    asked = [sys.executable, "-c", NEEDED]
    files = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split("\n")
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(filter(None, files)):
            archive.write(file, Path(file).relative_to(ROOT))
    return held.getvalue()


def pack(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 9)).decode()


def data_url(text: str, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
