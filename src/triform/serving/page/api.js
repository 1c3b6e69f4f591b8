// Calls of the server's API: JSON, streams of server-sent events, and the token.

const TOKEN_KEY = 'triform-token';
let askForToken = () => {};

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// The address that the server prints ends with #token=…, which a browser does not send to any server. The token is kept
// for this tab and removed from the address.
export function takeTokenFromAddress() {
  const [, token] = /^#token=(.+)$/.exec(location.hash) ?? [];
  if (token === undefined) return;
  setToken(decodeURIComponent(token));
  history.replaceState(null, '', '#/runs');
}
export const setToken = token => sessionStorage.setItem(TOKEN_KEY, token);
export const onMissingToken = callback => { askForToken = callback; };

// A run's id is its path relative to the folder of runs.
export const encodeId = id => id.split('/').map(encodeURIComponent).join('/');

// Send a request and return the response. Errors of every dialect become an `ApiError` with the server's message.
export async function request(path, {method = 'GET', body, accept = 'application/json', headers = {}, signal} = {}) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  const isFile = body instanceof Blob;
  const response = await fetch(path, {
    method, signal,
    headers: {
      Accept: accept,
      ...(body === undefined || isFile ? {} : {'Content-Type': 'application/json'}),
      ...(token ? {Authorization: `Bearer ${token}`} : {}),
      ...headers,
    },
    body: body === undefined || isFile ? body : JSON.stringify(body),
  }).catch(error => {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, 'The server does not answer.');
  });
  if (response.ok) return response;
  if (response.status === 401) askForToken();
  throw new ApiError(response.status, await errorMessage(response));
}

async function errorMessage(response) {
  try {
    const {error} = await response.json();
    return typeof error === 'string' ? error : error.message;
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

export const getJson = async (path, options) => (await request(path, options)).json();
export const postJson = async (path, body, options) => (await request(path, {...options, method: 'POST', body})).json();
export const deleteJson = async (path, options) => (await request(path, {...options, method: 'DELETE'})).json();

// Yield the events of a stream as {event, data}. `data` is text. A request with a body is sent as POST.
export async function* streamEvents(path, {body, signal} = {}) {
  const method = body === undefined ? 'GET' : 'POST';
  const response = await request(path, {method, body, signal, accept: 'text/event-stream'});
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = '';
  try {
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      const blocks = (pending + value).split(/\r?\n\r?\n/);
      pending = blocks.pop();
      for (const block of blocks) {
        const event = parseEvent(block);
        if (event) yield event;
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function parseEvent(block) {
  let event = 'message';
  const data = [];
  for (const line of block.split(/\r?\n/)) {
    const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
    if (field === 'event') event = value;
    if (field === 'data') data.push(value);
  }
  return data.length ? {event, data: data.join('\n')} : null;
}

// Call `load` now and again every `seconds`, while the page is visible. It returns a function that stops it.
// `onState(true)` and `onState(false)` say whether the server answers.
export function poll(load, seconds, onState = () => {}) {
  const controller = new AbortController();
  let timer = 0;
  const next = async () => {
    clearTimeout(timer);
    if (!document.hidden) {
      try {
        await load(controller.signal);
        onState(true);
      } catch (error) {
        if (controller.signal.aborted) return;
        if (!(error instanceof ApiError)) throw error;
        onState(false, error);
      }
    }
    if (!controller.signal.aborted) timer = setTimeout(next, 1000 * seconds);
  };
  const onVisible = () => { if (!document.hidden) next(); };
  document.addEventListener('visibilitychange', onVisible);
  next();
  return () => {
    controller.abort();
    clearTimeout(timer);
    document.removeEventListener('visibilitychange', onVisible);
  };
}
