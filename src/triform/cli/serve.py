"""`triform serve`: answer HTTP requests with trained models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from triform.cli.completion import complete_run
from triform.cli.help import OUTPUT, argument, flag, option
from triform.cli.options import DeviceOption, PrecisionOption, print_json
from triform.cli.server_token import choose_token
from triform.errors import ConfigError, RunInterruptedError, format_notice
from triform.formatting import echo

if TYPE_CHECKING:
    from triform.serving import ServerOptions

ADDRESS, LIMITS = "Address and access", "Limits"
STOPPED_MESSAGE = "the server has stopped"

HostOption = Annotated[
    str,
    option(
        ADDRESS,
        "HOST",
        "Address to listen on. With 0.0.0.0, other machines reach the server; they need the token.",
        name="--host",
    ),
]
PortOption = Annotated[int, option(ADDRESS, "N", "Port to listen on. 0 chooses a free port.")]
TokenOption = Annotated[
    str | None,
    option(
        ADDRESS,
        "TEXT",
        "Token that every request must have. Other users of this machine see it in the list of processes, but not "
        "one of --token-file or of the environment variable TRIFORM_TOKEN. Without a token, a server on a loopback "
        "address needs none, and another one gets a random token, which is printed.",
    ),
]
TokenFileOption = Annotated[
    Path | None,
    option(ADDRESS, "FILE", "File with the token. Only you should be able to read it.", name="--token-file"),
]
AllowHostOption = Annotated[
    list[str] | None,
    option(
        ADDRESS,
        "NAME",
        "Accept requests to this host name too, for example the name of a proxy. Repeatable.",
        name="--allow-host",
    ),
]
ReadOnlyOption = Annotated[
    bool, flag(ADDRESS, "--read-only", "Refuse requests that delete runs or start, stop or resume training.")
]
MaxBatchOption = Annotated[int, option(LIMITS, "N", "Number of texts that a model computes together.", minimum=1)]
MaxQueueOption = Annotated[
    int,
    option(
        LIMITS,
        "N",
        "Number of requests that may wait for a model, and of texts in one request. Further requests are answered "
        "with status 429.",
        minimum=1,
    ),
]
AddressJsonOption = Annotated[
    bool,
    flag(
        OUTPUT,
        "--json",
        "Print the address as one line of JSON, with the token if it is a random one or that of --token.",
    ),
]


def serve(
    runs: Annotated[
        list[str],
        argument(
            "[NAME=]RUN",
            "Run folder, or a folder of --seeds as an ensemble. The model has the name of the folder, or NAME.",
            complete=complete_run,
        ),
    ],
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    allow_host: AllowHostOption = None,
    read_only: ReadOnlyOption = False,
    page: Annotated[bool, flag(ADDRESS, "--page", "Serve the page of triform studio too.")] = False,
    max_batch: MaxBatchOption = 32,
    max_queue: MaxQueueOption = 256,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    json_: AddressJsonOption = False,
) -> None:
    """Serve trained models over HTTP.

    Programs use the models with clients that they already have: language models in the way of OpenAI
    (/v1/completions), classifiers in the way of text-embeddings-inference (/predict, /embed),
    translators in the way of LibreTranslate (/translate). /openapi.json describes all routes. Ctrl-C answers the
    running requests and stops the server.

    Examples:
        triform serve runs/story
        triform serve runs/reviews en-fr=runs/translator --port 9000
        triform serve reviews=runs/eight
    """
    from triform.serving import ServerOptions

    token, shown_token = choose_token(host, token, token_file)
    paths = parse_runs(runs)
    if page:
        refuse_ensembles(paths)
    options = ServerOptions(
        runs=paths,
        page=page,
        host=host,
        allowed_hosts=tuple(allow_host or ()),
        token=token,
        device=device,
        precision=precision,
        max_batch=max_batch,
        max_queue=max_queue,
        read_only=read_only,
    )
    run_until_interrupted(options, port, json_=json_, shown_token=shown_token)


def parse_runs(arguments: list[str]) -> dict[str, Path]:
    """Return the folders of runs and ensembles by name, from arguments such as `en-fr=runs/translator`."""
    from triform.io.ensembles import find_member_folders

    runs: dict[str, Path] = {}
    for text in arguments:
        model_name, separator, folder = text.partition("=")
        path = Path(folder if separator else text)
        name = model_name if separator else path.resolve().name
        if not separator and not path.exists() and len(find_member_folders(path)) > 1:
            raise ConfigError(f"{text}: an ensemble of several runs needs a name; write NAME={text}")
        if not name or (separator and not folder):
            raise ConfigError(f"{text}: write NAME=RUN or RUN")
        if name in runs:
            raise ConfigError(f"two models have the name {name}; write NAME=RUN with another name for one of them")
        runs[name] = path
    return runs


def refuse_ensembles(paths: dict[str, Path]) -> None:
    """Raise `ConfigError` if one of the models is an ensemble, of which the page of the studio has no curves."""
    from triform.io.ensembles import find_member_folders

    for name, path in paths.items():
        if len(find_member_folders(path)) > 1:
            raise ConfigError(f"{name} is an ensemble, and --page shows single runs; leave out --page")


def run_until_interrupted(
    options: ServerOptions, port: int, *, json_: bool, shown_token: str, open_browser: bool = False
) -> None:
    """Load the runs that are served by name, print the address of the server, and serve until Ctrl-C."""
    from triform.device import resolve_device
    from triform.serving.app import create_app
    from triform.serving.listen import bind_socket, format_url, run_server

    resolve_device(options.device)  # a device that is missing is reported now, and not by the first request
    app = create_app(options)
    for name in options.runs:
        for notice in app.state.server.models.load(name).run.notices:
            echo(format_notice(notice, info_prefix="note: "), err=True)
    sock = bind_socket(options.host, port)
    url = format_url(options.host, sock)
    page_url = f"{url}/#token={quote(shown_token, safe='')}" if shown_token else url

    def on_start() -> None:
        if json_:
            print_json({"address": url, **({"token": shown_token} if shown_token else {})}, indent=None)
        elif options.page:
            echo(f"{page_url}  (Ctrl-C stops the server)")
        else:
            echo(f"{url}  (Ctrl-C stops the server)")
            if shown_token:
                echo(f"token: {shown_token}")
        if open_browser:
            import webbrowser

            webbrowser.open(page_url)

    run_server(app, sock, on_start)
    raise RunInterruptedError(STOPPED_MESSAGE)
