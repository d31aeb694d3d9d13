"""The page: five tabs around a model, on gradio."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from hf_meanmax.extras import require
from hf_meanmax.files import Json, shared_name

from . import panels
from .model import MOST_MEGABYTES, MOST_TEXTS, NO_DECODER, NO_ROWS, DemoModel, EncodedSentences

if TYPE_CHECKING:
    from gradio import Blocks
    from gradio.components import Component, Textbox
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Uploads and their vectors are kept for an hour; expired ones are deleted once an hour.
_SECONDS_KEPT = 3600

# A corpus and the file that it was read from.
_Known = tuple[str | None, EncodedSentences]

_SENTENCES = (
    "The old man sat by the fire.",
    "An elderly man was warming himself at the hearth.",
    "The train to the coast leaves at noon.",
    "When does the next train go to the sea?",
    "She closed the letter and did not answer.",
)
# The page loads nothing from other machines, although gradio's template names some.
_POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"


def load_gradio() -> ModuleType:
    """Imports gradio with its analytics turned off.

    Raises:
        ImportError: it is not installed.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    return require("gradio", "demo", "The demo")


def build_page(model: DemoModel) -> Blocks:
    """The page of a model, not launched yet.

    Raises:
        ImportError: gradio is not installed.
    """
    gr = load_gradio()
    with gr.Blocks(title="hf_meanmax", analytics_enabled=False, delete_cache=(_SECONDS_KEPT, _SECONDS_KEPT)) as page:
        gr.Markdown(f"## hf_meanmax\n`{shared_name(model.name)}`: vectors of {model.dimension:,} numbers")
        # The message of a tab that the model does not support.
        no_decoder, no_rows = NO_DECODER if model.model is None else "", NO_ROWS if model.encoder is None else ""
        for label, fill, missing in (
            ("Similarity", _similarity_tab, ""),
            ("Decode", _decode_tab, no_decoder),
            ("Between", _between_tab, no_decoder),
            ("Search", _search_tab, ""),
            ("Attention", _attention_tab, no_rows),
        ):
            with gr.Tab(label, elem_id=f"{label.lower()}-tab"):
                if missing:
                    gr.HTML(panels.message_panel(missing))
                else:
                    fill(gr, model)
    return page


def launch(model: str, host: str = "127.0.0.1", port: int | None = None, trust_remote_code: bool = False) -> None:
    """Serves the page of a model until it is interrupted.

    Args:
        model: a checkpoint folder, any SentenceTransformer's folder, or a name on the Hub.
        host: the address to listen on; the default is only reachable from this machine.
        port: the port (default: the first free one from 7860).
        trust_remote_code: run code that comes with the model.

    Raises:
        ImportError: gradio is not installed.
        OSError: the port is taken, or there is no such address.
        FileNotFoundError, ValueError: no such model.
    """
    load_gradio()
    try:
        # gradio's errors would name its own arguments, and repeat a wrong address a hundred times.
        socket.create_server((host, port or 0)).close()
    except OSError as error:
        place, reason = host if port is None else f"{host}, port {port},", str(error.strerror).partition(" (")[0]
        raise OSError(f"{place} cannot be listened at ({reason}). Give another `port` or `host`.") from None
    page = build_page(DemoModel(model, trust_remote_code))
    page.queue(max_size=20).launch(**launch_settings(), server_name=host, server_port=port)


def launch_settings() -> Json:
    """Arguments of `launch`: fonts of the reader's own machine, a limit on uploads, no tracebacks in the page."""
    from starlette.middleware import Middleware

    gr = load_gradio()
    fonts = ["system-ui", "sans-serif"]
    return {
        "theme": gr.themes.Default(font=fonts, font_mono=["ui-monospace", "monospace"]),
        "css": panels.STYLE,
        "max_file_size": f"{MOST_MEGABYTES}mb",
        "show_error": False,
        "share": False,
        "footer_links": [],
        "ssr_mode": False,
        "app_kwargs": {"middleware": [Middleware(_OwnMachineAlone)]},
    }


class _OwnMachineAlone:
    """Adds a header that makes the browser load everything from this server."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", _POLICY.encode())]
            await send(message)

        await self.app(scope, receive, send_with_policy)


def shown(run: Callable[..., str]) -> Callable[..., str]:
    """Wraps a handler of the page: errors become a message in place of its output."""

    def handler(*args: object) -> str:
        try:
            return run(*args)
        except (ValueError, OSError, ImportError) as error:
            return panels.message_panel(str(error))
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return panels.message_panel("This did not work. The terminal that runs the demo has the details.")

    return handler


def _output(
    gr: ModuleType, run: Callable[..., str], inputs: list[Component], label: str, also: Textbox | None = None
) -> None:
    """Adds a button and its output; the Enter key in the text field `also` triggers it as well."""
    button = gr.Button(label, variant="primary")
    output = gr.HTML()
    triggers = [button.click, *(() if also is None else (also.submit,))]
    gr.on(triggers, shown(run), inputs, output, api_visibility="private")


def _similarity_tab(gr: ModuleType, model: DemoModel) -> None:
    texts = gr.Textbox(
        "\n".join(_SENTENCES), lines=6, max_lines=MOST_TEXTS, label=f"Texts, one a line (2-{MOST_TEXTS})"
    )

    def run(given: str) -> str:
        lines = [" ".join(line.split()) for line in given.splitlines() if line.strip()]
        return panels.similarity_panel(lines, model.similarity(lines))

    _output(gr, run, [texts], "Compare")


def _decode_tab(gr: ModuleType, model: DemoModel) -> None:
    text = gr.Textbox(_SENTENCES[0], label="Text")
    with gr.Row():
        noise = gr.Slider(0, 2, 0, step=0.05, label="Noise (standard deviations of the numbers)", min_width=280)
        kept = gr.Slider(1, 100, 100, step=1, label="Largest numbers kept (%)", min_width=280)
        seed = gr.Number(0, precision=0, minimum=0, maximum=2**31 - 1, label="Seed of the noise", min_width=120)

    def run(given: str, noise: float, kept: float, seed: int | None) -> str:
        return panels.decoded_panel(*model.decode_text(given, noise, kept / 100, max(0, int(seed or 0))))

    _output(gr, run, [text, noise, kept, seed], "Encode and decode", text)


def _between_tab(gr: ModuleType, model: DemoModel) -> None:
    with gr.Row():
        first = gr.Textbox(_SENTENCES[0], label="First text", min_width=280)
        second = gr.Textbox(_SENTENCES[2], label="Second text", min_width=280)
    steps = gr.Slider(3, 15, 7, step=1, label="Steps")

    def run(first: str, second: str, steps: float) -> str:
        return panels.between_panel(model.between(first, second, int(steps)))

    _output(gr, run, [first, second, steps], "Decode the path", second)


def _search_tab(gr: ModuleType, model: DemoModel) -> None:
    query = gr.Textbox("Where can I see the stars?", label="Query")
    with gr.Row():
        with gr.Column(min_width=280):
            limit = (
                f"one sentence a line, up to {MOST_MEGABYTES} MB. Without a file, the demo searches its own sentences."
            )
            file = gr.File(label="Text file", file_types=[".txt"], height=160)
            gr.HTML(panels.panel(f'<p class="note">UTF-8, {limit}</p>'))
        count = gr.Slider(1, 20, 5, step=1, label="Neighbours", min_width=280)
    # The vectors of the last file, separate for each visitor.
    kept = gr.State(None, time_to_live=_SECONDS_KEPT)

    def handler(query: str, path: str | None, count: float, known: _Known | None) -> tuple[str, _Known | None]:
        def searched() -> str:
            nonlocal known
            if known is None or known[0] != path:
                known = path, model.read_corpus(path)
            return panels.search_panel(known[1], model.search(known[1], query, int(count)))

        return shown(searched)(), known

    button = gr.Button("Search", variant="primary")
    output = gr.HTML()
    gr.on([button.click, query.submit], handler, [query, file, count, kept], [output, kept], api_visibility="private")


def _attention_tab(gr: ModuleType, model: DemoModel) -> None:
    text = gr.Textbox("The old man sat by the fire, and nobody asked him why.", label="Text")

    def run(given: str) -> str:
        return panels.attention_panel(*model.attention(given))

    _output(gr, run, [text], "Show", text)
