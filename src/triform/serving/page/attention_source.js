// The attention of a text as the server computes it: a source for the view of attention_view.js.

import {postJson} from './api.js';

const MAX_MATRICES = 24;  // that stay in the browser; one of 512 tokens has 1 MB
const THUMBNAIL_PIXELS = 64;

export function decodeBytes(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}
export function decodeMatrix({rows, columns, data}) {
  const values = new Float32Array(decodeBytes(data).buffer);  // browsers run on little-endian machines
  return {values, rows, columns, least: null, mean: null, most: values.reduce((a, b) => b > a ? b : a, 0)};
}

// `request` is {model, text, target, checkpoint}. Errors after the first answer are given to `onError`. `onNewStep` is called
// when the server has only a newer checkpoint than the one that was opened.
export async function openAttention(request, {onError, onNewStep, signal}) {
  const ask = (part, options) => postJson('api/attention',
    {weights: false, summary: false, ...request, ...part, ...options}, {signal});
  const opened = await ask();
  const step = opened.step === null ? {} : {step: opened.step};  // stay at this checkpoint while training goes on
  const maps = opened.parts.map(part => ({
    name: part.name, heading: part.title, queries: part.queries, keys: part.keys, layers: part.n_layers, heads: part.n_heads,
    causal: part.causal,
    views: [...Array.from({length: part.n_heads}, (_, i) => `head ${i + 1}`), 'average of heads',
      ...(part.has_rollout ? ['rollout'] : [])],
  }));
  const matrices = new Map();
  const headOf = (map, view) => view < maps[map].heads ? view : view === maps[map].heads ? 'average' : 'rollout';
  const guarded = promise => promise.catch(error => {
    if (error.name === 'AbortError') return null;
    if (error.status === undefined) throw error;
    onError(error);
    return null;
  });
  const load = async (map, layer, view) => {
    const key = `${map} ${layer} ${view}`;
    if (!matrices.has(key)) {
      const answer = await ask({part: maps[map].name, layer, head: headOf(map, view)}, {weights: true, ...step});
      if (answer.step !== opened.step) { onNewStep(); return null; }
      matrices.set(key, decodeMatrix(answer.weights));
      if (matrices.size > MAX_MATRICES) matrices.delete(matrices.keys().next().value);
    }
    return matrices.get(key);
  };
  const loadSummary = async map => {
    const {summary} = await ask({part: maps[map].name}, {summary: true, ...step});
    return {entropy: summary.entropy, most_bits: summary.max_entropy, distance: summary.distance};
  };
  const loadThumbnails = async (map, layer) => {
    const {thumbnails: {rows, columns, data}} = await ask({part: maps[map].name, layer}, {thumbnails: THUMBNAIL_PIXELS, ...step});
    return {rows, columns, pixels: decodeBytes(data)};
  };
  return {
    opened, maps,
    load: (...selection) => guarded(load(...selection)),
    loadSummary: map => guarded(loadSummary(map)),
    loadThumbnails: (map, layer) => guarded(loadThumbnails(map, layer)),
  };
}
