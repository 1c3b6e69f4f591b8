"""The HTTP server: one API for classification, generation and translation, and the page of the studio.

Read the modules in this order:

- `options`: what a server is started with.
- `endpoints`: a route, its request and its response as types; errors in the shape of each dialect.
- `app`: `create_app` puts the endpoints of all dialects together as an ASGI app; `listen` runs it.
- `security`, `metrics`: what happens to every request; `server`: what the handlers of all requests share.
- `models`, `worker`: the runs that are served, and the thread that answers the requests to a run.
- `jobs`, `generation_batches`, `text_stream`: requests on their way, the texts that are decoded, and their text.
- one module for each dialect: `openai_api` with `completion_choices`, `text_api`, `translate_api` with `languages`;
  `operations` with `openapi`.
- the tabs of the studio: `runs_api`, `compare_api`, `attention_api`, `train_api`, `jobs_api`, and `page_files`.
"""

from triform.serving.app import create_app
from triform.serving.options import ServerOptions

__all__ = ["ServerOptions", "create_app"]
