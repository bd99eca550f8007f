// Runs Python beside the page: a question is {id, kind, fields, width}, its answer what docs/playground/answers.py says.
import { loadPyodide } from "./pyodide.mjs";

async function start() {
  const here = new URL(".", import.meta.url).href;
  const pyodide = await loadPyodide({ indexURL: here });
  const archive = await fetch(here + "layout.zip");
  if (!archive.ok) throw new Error(`layout.zip: ${archive.status}`);
  pyodide.unpackArchive(await archive.arrayBuffer(), "zip", { extractDir: "/layout" });
  pyodide.runPython("import sys; sys.path.insert(0, '/layout')");
  const answers = pyodide.pyimport("answers");
  const toJs = (found) => {
    try {
      return found.toJs({ dict_converter: Object.fromEntries });
    } finally {
      found.destroy();
    }
  };
  const answer = (kind, fields, width) => {
    const given = pyodide.toPy(fields);
    try {
      return toJs(answers.answer(kind, given, width));
    } finally {
      given.destroy();
    }
  };
  return { answer, names: toJs(answers.names()) };
}

const ready = start();
ready.then(
  ({ names }) => postMessage({ names }),
  (error) => postMessage({ failed: String(error) }),
);
onmessage = async ({ data: { id, kind, fields, width } }) => {
  const { answer } = await ready;
  try {
    postMessage({ id, ...answer(kind, fields, width) });
  } catch (error) {
    postMessage({ id, error: `Python stopped: ${error.message.trim().split("\n").pop()}` });
  }
};
