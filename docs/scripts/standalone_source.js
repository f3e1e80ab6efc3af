// Where answers come from on a page without a server: our planner, run by the Python (pyodide) that
// the page itself holds. A page from a disk may fetch nothing, so all of it stands in the page.
const INDEX = "https://pyodide.invalid/"; // an address that pyodide asks for its files, and nobody else

async function part(name) {
  const packed = Uint8Array.from(atob(document.getElementById(`part-${name}`).textContent), (letter) => letter.charCodeAt(0));
  const open = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(open).arrayBuffer());
}

const address = (bytes, type) => URL.createObjectURL(new Blob([bytes], { type }));

async function start() {
  const elsewhere = globalThis.fetch;
  globalThis.fetch = async (asked, ...rest) => (String(asked) === `${INDEX}pyodide.asm.wasm`
    ? new Response(await part("pyodide.asm.wasm"), { headers: { "Content-Type": "application/wasm" } })
    : elsewhere(asked, ...rest));
  const { loadPyodide } = await import(address(await part("pyodide.mjs"), "text/javascript"));
  const { default: createPyodideModule } = await import(address(await part("pyodide.asm.mjs"), "text/javascript"));
  const python = await loadPyodide({
    indexURL: INDEX, createPyodideModule, packageBaseUrl: INDEX,
    stdLibURL: address(await part("python_stdlib.zip"), "application/zip"),
    lockFileContents: new TextDecoder().decode(await part("pyodide-lock.json")),
  });
  python.unpackArchive(await part("stepladder.zip"), "zip", { extractDir: "/planner" });
  return python.runPython(`
import json, sys
sys.path.insert(0, "/planner")
from stepladder.cli.planner_page.answers import answer, choices

def ask(question, fields):
    found = choices({}) if question == "choices" else answer(question, json.loads(fields))
    return json.dumps(found)

ask`);
}

const started = start();
export async function ask(question, values) {
  return JSON.parse((await started)(question, JSON.stringify(values)));
}
