// The attention of a text: tokens that read and are read, the heat map of a head, and numbers about all heads.
// The page of an explanation and the studio use it. A page has one view at a time.
//
// A source has `maps`, and functions that return promises: `load(map, layer, view)` gives a matrix (see heatmap.js), and the
// optional `loadThumbnails(map, layer)` gives {rows, columns, pixels} with small pictures of all heads of a layer. A map is
// {heading, queries, keys, layers, heads, views, causal}; the views of a layer are its heads, their average and the rollout.
// A map's `summary` is {entropy, most_bits, distance}; `loadSummary(map)` gives it if it comes later. `sums` and `padding`
// are optional.
import {$, clamp, colour, fillTokens, listen, make, number, paint, quoted, readRamps, visible, zeroColour} from './components.js';
import {Heatmap, drawLegend, drawPixels, rowOf, shade, weightText} from './heatmap.js';

const LISTED = 10;
const THUMBNAIL_GRID = 'thumbnails';

const columnOf = (m, k) => Float64Array.from({length: m.rows}, (_, q) => m.values[q * m.columns + k]);
const strongest = values => values.reduce((best, value, i) => value > (values[best] || 0) ? i : best, 0);

// The selected view, the pinned query, and the current query and key. `side` is the list that the pointer is on.
const state = {map: 0, layer: 0, view: 0, matrix: null, pinned: 0, query: 0, key: 0, side: 'query'};
let source, heat, tokens, summaryKind;
const shownMap = () => source.maps[state.map];

// Build the view inside an element and show a source. `selection` is {map, layer, view}. It returns functions: `redraw` for
// other colours, and `remove`, which stops listening to the keyboard and to changes of the size.
export function createAttentionView(container, newSource, selection = {}) {
  const controller = new AbortController();
  [source, tokens, summaryKind] = [newSource, {query: [], key: []}, 'entropy'];
  Object.assign(state, {map: 0, layer: 0, view: 0, matrix: null, pinned: 0, query: 0, key: 0, side: 'query'});
  readRamps();
  buildBar(container);
  buildPanes(container);
  heat = new Heatmap($('heatmap'));
  listenToControls();
  listenToHeatmap(controller.signal);
  listenToKeyboard(controller.signal);
  choose(selection);
  return {redraw, remove: () => controller.abort()};
}

function redraw() {
  readRamps();
  if (!state.matrix) return;
  paintSummary();
  drawThumbnails();
  drawMatrix();
  colourTokens();
  drawHeatmap();
}

// -- elements

const card = (parent, title, note = '', name = '') => {
  const section = make('section', parent, '', `card ${name}`);
  if (title) make('span', make('h3', section, `${title} `), note);
  return section;
};
const withId = (node, id, attributes = {}) => {
  node.id = id;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
};

function buildBar(container) {
  const bar = make('div', container, '', 'card bar'), controls = make('div', bar, '', 'controls');
  for (const [name, id] of [['Map', 'map-select'], ['Layer', 'layer-select'], ['Head', 'head-select']]) {
    const label = make('label', controls, `${name} `);
    if (id === 'map-select') withId(label, 'map-field').hidden = source.maps.length < 2;
    withId(make('select', label), id);
  }
  const hint = make('p', controls, '', 'hint');
  for (const part of ['Shift', ' + ', '↑', ' ', '↓', ' layer, ', '←', ' ', '→', ' head']) {
    /^[A-Z↑↓←→]/u.test(part) ? make('kbd', hint, part) : hint.append(part);
  }
  source.maps.forEach((each, i) => { make('option', $('map-select'), each.heading).value = i; });
  const legend = withId(make('div', bar, '', 'scale small'), 'legend');
  make('span', legend, 'weight: > 0');
  withId(make('canvas', legend), 'ramp', {'aria-hidden': 'true'});
  withId(make('span', legend), 'most');
  const unread = withId(make('span', legend), 'unread');
  make('span', unread, '', 'swatch zero');
  unread.append(' 0: not read');
  const readout = withId(make('p', bar), 'readout', {'aria-live': 'polite'});
  withId(make('span', readout), 'from', {dir: 'auto'});
  make('i', readout, ' → ').setAttribute('aria-label', 'reads');
  withId(make('span', readout), 'to', {dir: 'auto'});
  withId(make('b', readout), 'weight');
}

function buildPanes(container) {
  if (source.loadThumbnails) {
    const grid = card(container, 'Heads', 'of this layer', 'grid-card');
    withId(make('div', grid), THUMBNAIL_GRID, {role: 'group', 'aria-label': 'All heads of this layer'});
  }
  const panes = make('div', container, '', 'panes'), main = make('div', panes, '', 'column'), side = make('div', panes, '', 'column');
  for (const [title, note, id] of [['Queries', 'tokens that read', 'queries'], ['Keys', 'tokens that are read', 'keys']]) {
    withId(make('div', card(main, title, note), '', 'tokens pane'), id, {role: 'group', 'aria-label': `${title}: ${note}`, dir: 'auto'});
  }
  const map = card(main, 'Heat map', '', 'late');
  withId(map.querySelector('h3 span'), 'view-name');
  withId(make('canvas', map), 'heatmap', {tabindex: '0', role: 'img'});
  make('p', map, 'Each row is a query and each column is a key. Move the crosshair with the arrow keys.', 'small');
  withId(make('p', map, 'Rollout at layer n estimates how much each input token contributes to each position after layers 1 to n. '
    + 'It assumes that half of the output of a layer comes from its residual connection.', 'small'), 'rollout-note');
  const list = card(side, '');
  withId(make('h3', list), 'list-title', {dir: 'auto'});
  withId(make('ol', list), 'list');
  withId(make('p', list, '', 'small'), 'rest');
  const summary = withId(card(side, 'All heads', '', 'late'), 'summary');
  withId(make('select', summary.querySelector('h3 span')), 'summary-select', {'aria-label': 'What to show of each head'});
  withId(make('table', make('div', summary, '', 'wide')), 'entropy');
  withId(make('p', summary, '', 'small'), 'entropy-note');
  const sums = withId(card(side, 'Sanity checks', 'sums of weights in each layer', 'late'), 'sums-card');
  withId(make('table', make('div', sums, '', 'wide')), 'sums');
  withId(make('p', sums, '', 'small'), 'sums-note');
}

// -- the current query and key

function lookAt(side, query, key) {
  const m = state.matrix;
  if (!m) return;
  Object.assign(state, {side, query, key});
  const {queries, keys} = shownMap(), value = m.values[query * m.columns + key];
  $('from').textContent = quoted(queries[query], query);
  $('to').textContent = quoted(keys[key], key);
  $('weight').textContent = weightText(m, query, key);
  const shown = $('readout').dataset;
  [shown.query, shown.key, shown.weight] = [query, key, isNaN(value) ? '' : value];
  colourTokens();
  fillList();
  drawHeatmap();
}
const lookFrom = query => state.matrix && lookAt('query', query, strongest(rowOf(state.matrix, query)));
const lookTo = key => lookAt('key', state.pinned, key);
function pin(query) {
  state.pinned = query;
  lookFrom(query);
  const pane = $('keys'), node = tokens.key[state.key];  // a click scrolls to the strongest key, hovering does not
  if (node.offsetTop < pane.scrollTop || node.offsetTop + node.offsetHeight > pane.scrollTop + pane.clientHeight) {
    pane.scrollTop = node.offsetTop - pane.clientHeight / 2;
  }
}

function colourTokens() {
  const {matrix, side, query, key, pinned} = state;
  const read = side === 'query' ? 'key' : 'query';
  tokens[read].forEach((node, i) => paint(node, side === 'query' ? shade(matrix, query, i) : shade(matrix, i, key)));
  tokens[side].forEach(node => paint(node, null));
  tokens.query.forEach((node, i) => {
    node.classList.toggle('active', i === query);
    node.setAttribute('aria-pressed', i === pinned);
  });
  tokens.key.forEach((node, i) => node.classList.toggle('active', i === key));
}

function fillList() {
  const {matrix: m, side, query, key} = state, {queries, keys} = shownMap();
  const pieces = side === 'query' ? keys : queries;
  const values = side === 'query' ? rowOf(m, query) : columnOf(m, key);
  const order = [...values.keys()].filter(i => !isNaN(values[i])).sort((a, b) => values[b] - values[a]);
  const top = order.slice(0, LISTED), most = values[top[0]] || 1;
  $('list-title').textContent = side === 'query'
    ? `${quoted(queries[query], query)} reads` : `${quoted(keys[key], key)} is read by`;
  $('list').replaceChildren();
  for (const i of top) {
    const row = make('li', $('list'));
    make('span', row, visible(pieces[i]), 'name').dir = 'auto';
    make('span', row, `#${i + 1}`, 'place');
    make('span', make('span', row, '', 'track'), '', 'fill').style.width = `${100 * values[i] / most}%`;
    make('span', row, number(values[i]), 'num');
  }
  const sum = top.reduce((a, i) => a + values[i], 0), others = pieces.length - top.length;
  if (side === 'query') {
    let rest = others ? `The other ${others} weights add up to ${number(Math.max(0, 1 - sum))}.` : '';
    if (order.length < m.columns) {
      rest += ` ${m.columns - order.length} weights are not stored; each is ≤ ${number(Math.max(m.least[query], .0001))}.`;
    }
    $('rest').textContent = rest;
  } else {
    const all = order.reduce((a, i) => a + values[i], 0);
    $('rest').textContent = `The weights of all queries add up to ${m.least && order.length < m.rows ? 'at least ' : ''}${number(all)}.`;
  }
}

// -- the selected map, layer and head

async function choose(change) {
  const before = state.map;
  Object.assign(state, change);
  const shown = shownMap();
  state.layer = clamp(state.layer, shown.layers - 1);
  state.view = clamp(state.view, shown.views.length - 1);
  if (!tokens.query.length || before !== state.map) enterMap(shown);
  $('layer-select').value = state.layer;
  $('head-select').value = state.view;
  $('view-name').textContent = `layer ${state.layer + 1}, ${shown.views[state.view]}`;
  markSummary();
  markThumbnails();
  const {map, layer, view} = state, matrix = await source.load(map, layer, view);
  if (!matrix || map !== state.map || layer !== state.layer || view !== state.view) return;  // another view was selected meanwhile
  state.matrix = matrix;
  drawMatrix();
  state.side === 'query' ? lookFrom(state.query) : lookAt(state.side, state.query, state.key);
  $('heatmap').dataset.shown = `${map} ${layer} ${view}`;
  source.onShown?.({map, layer, view});
  showThumbnails(map, layer);
}

function enterMap(shown) {
  const options = (select, names) => {
    select.replaceChildren();
    names.forEach((name, i) => { make('option', select, name).value = i; });
  };
  $('map-select').value = state.map;
  options($('layer-select'), Array.from({length: shown.layers}, (_, i) => `layer ${i + 1}`));
  options($('head-select'), shown.views);
  tokens = {query: fillTokens($('queries'), shown.queries, 'query'), key: fillTokens($('keys'), shown.keys, 'key')};
  const start = Math.min(Math.floor(shown.queries.length / 2), 20);  // the first query may read only itself
  Object.assign(state, {matrix: null, side: 'query', query: start, pinned: start, key: 0});
  $('list').style.minHeight = `${25 * Math.min(LISTED, Math.max(shown.queries.length, shown.keys.length))}px`;
  $('rollout-note').hidden = !shown.views.includes('rollout');
  fillSummary(shown);
  $('sums-card').hidden = !shown.sums;
  if (shown.sums) fillSums(shown);
}

function move(layers, views) {
  const shown = shownMap();
  choose({layer: clamp(state.layer + layers, shown.layers - 1), view: clamp(state.view + views, shown.views.length - 1)});
}

function drawMatrix() {
  const {queries, keys} = shownMap(), m = state.matrix;
  heat.paint(m, queries, keys);
  drawLegend($('ramp'));
  $('most').textContent = number(m.most || 1);
  $('unread').style.visibility = m.values.includes(0) ? '' : 'hidden';
}
function drawHeatmap() {
  const {matrix: m, query, key} = state;
  heat.draw(query, key);
  $('heatmap').setAttribute('aria-label', `Heat map, ${$('view-name').textContent}. `
    + `${$('from').textContent} reads ${$('to').textContent}: ${weightText(m, query, key)}`);
}

// -- numbers and small pictures of all heads

const SUMMARIES = {
  entropy: {title: 'entropy, in bits', unit: 'bits', most: summary => summary.most_bits,
    note: summary => 'At 0 bits, every query reads a single key. '
      + `At ${summary.most_bits.toFixed(2)} bits, the maximum here, every query gives the same weight to all keys that it may read.`},
  distance: {title: 'distance, in tokens', unit: 'tokens', most: summary => Math.max(...summary.distance.flat()),
    note: () => 'The distance between a query and the keys that it reads, weighted and averaged over the queries.'},
};
async function fillSummary(shown) {
  $('entropy').replaceChildren();
  $('entropy-note').textContent = '';
  shown.summary ??= await source.loadSummary(state.map);
  if (!shown.summary || shown !== shownMap()) return;
  const kinds = Object.keys(SUMMARIES).filter(kind => shown.summary[kind]);
  summaryKind = kinds.includes(summaryKind) ? summaryKind : kinds[0];
  const select = $('summary-select'), {title, unit, note} = SUMMARIES[summaryKind];
  select.replaceChildren();
  for (const kind of kinds) make('option', select, SUMMARIES[kind].title).value = kind;
  select.value = summaryKind;
  const table = $('entropy');
  table.setAttribute('aria-label', `Heads: ${title}`);
  const head = make('tr', make('thead', table)), body = make('tbody', table);
  make('td', head);
  for (let i = 0; i < shown.heads; i++) make('th', head, i + 1).setAttribute('aria-label', `head ${i + 1}`);
  shown.summary[summaryKind].forEach((row, layer) => {
    const line = make('tr', body);
    make('th', line, layer + 1).setAttribute('aria-label', `layer ${layer + 1}`);
    row.forEach((value, view) => {
      const cell = make('button', make('td', line), value.toFixed(shown.heads > 8 ? 1 : 2));
      Object.assign(cell.dataset, {layer, view, value});
      cell.type = 'button';
      cell.setAttribute('aria-label', `layer ${layer + 1}, head ${view + 1}: ${value.toFixed(4)} ${unit}`);
      cell.title = `${value.toFixed(4)} ${unit}`;
    });
  });
  $('entropy-note').textContent = `Rows are layers, columns are heads. Click a cell to show that head. ${note(shown.summary)}`;
  paintSummary();
  markSummary();
}
function paintSummary() {
  const {summary} = shownMap();
  if (!summary) return;
  const most = SUMMARIES[summaryKind].most(summary) || 1;
  for (const cell of $('entropy').querySelectorAll('button')) paint(cell, colour(cell.dataset.value / most));
}
function markSummary() {
  const cells = [...$('entropy').querySelectorAll('button')];
  const on = cells.find(cell => +cell.dataset.layer === state.layer && +cell.dataset.view === state.view);
  for (const cell of cells) {
    cell.setAttribute('aria-pressed', cell === on);
    cell.tabIndex = cell === (on || cells[0]) ? 0 : -1;
  }
  if (on && document.activeElement?.closest('#entropy')) on.focus();
}

const SUMS = {padding: 'on padding', future: 'on later tokens', outside_window: 'outside window'};
const mass = value => value === null ? '–' : value === 0 ? '0' : value < .0001 ? value.toExponential(1) : number(value);
function fillSums(shown) {
  const table = $('sums'), names = Object.keys(SUMS);
  table.replaceChildren();
  const head = make('tr', make('thead', table)), body = make('tbody', table);
  for (const text of ['layer', 'row sums', ...Object.values(SUMS)]) make('th', head, text);
  shown.sums.forEach((sums, layer) => {
    const row = make('tr', body), [low, high] = [sums.row_sum_min.toFixed(6), sums.row_sum_max.toFixed(6)];
    make('th', row, layer + 1);
    make('td', row, low === high ? low : `${low} to ${high}`).dataset.name = 'row_sums';
    for (const name of names) make('td', row, mass(sums[name])).dataset.name = name;
  });
  $('sums-note').textContent = 'Row sums must be 1. The other columns are the weight that a query puts on these keys, averaged '
    + `over heads and queries. It must be 0 on padding${shown.causal ? ', on later tokens' : ''} and outside the window. `
    + (shown.causal || shown.sums[0].future === null ? '' : 'This map is not causal, so its queries may read later tokens. ')
    + (shown.padding ? `The last ${shown.padding} keys are padding.` : 'The text is not padded; --pad-to N adds padding.');
}

let thumbnails = null;
async function showThumbnails(map, layer) {
  const grid = $(THUMBNAIL_GRID);
  if (!grid || grid.dataset.shown === `${map} ${layer}`) return;
  const loaded = await source.loadThumbnails(map, layer);
  if (!loaded || map !== state.map || layer !== state.layer) return;
  thumbnails = loaded;
  grid.replaceChildren();
  for (let view = 0; view < shownMap().heads; view++) {
    const button = make('button', grid, '', 'thumbnail');
    button.type = 'button';
    button.dataset.view = view;
    button.setAttribute('aria-label', `head ${view + 1}`);
    make('canvas', button).setAttribute('aria-hidden', 'true');
    make('span', button, view + 1);
  }
  grid.dataset.shown = `${map} ${layer}`;
  drawThumbnails();
  markThumbnails();
}
function drawThumbnails() {
  const {rows, columns, pixels} = thumbnails ?? {};
  document.querySelectorAll(`#${THUMBNAIL_GRID} canvas`).forEach((canvas, head) => {
    drawPixels(canvas, rows, columns, (row, column) => {
      const level = pixels[(head * rows + row) * columns + column];
      return level ? colour(level / 255) : zeroColour();
    });
  });
}
function markThumbnails() {
  for (const button of document.querySelectorAll(`#${THUMBNAIL_GRID} button`)) {
    button.setAttribute('aria-pressed', +button.dataset.view === state.view);
  }
}

// -- events

function listenToControls() {
  $('map-select').addEventListener('change', event => choose({map: +event.target.value, layer: 0, view: 0}));
  $('layer-select').addEventListener('change', event => choose({layer: +event.target.value}));
  $('head-select').addEventListener('change', event => choose({view: +event.target.value}));
  $('summary-select').addEventListener('change', event => { summaryKind = event.target.value; fillSummary(shownMap()); });
  listen($('queries'), lookFrom, pin, () => lookFrom(state.pinned));
  listen($('keys'), lookTo, lookTo, () => lookFrom(state.pinned));
  for (const id of ['entropy', THUMBNAIL_GRID]) {
    $(id)?.addEventListener('click', event => {
      const {layer = state.layer, view} = event.target.closest('button')?.dataset ?? {};
      if (view !== undefined) choose({layer: +layer, view: +view});
    });
  }
}
const ARROWS = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
function listenToKeyboard(signal) {
  document.addEventListener('keydown', event => {
    const table = event.target.closest?.('#entropy'), arrow = ARROWS[event.key];
    if (!arrow || !(event.shiftKey || table) || event.target.closest?.('select, input, textarea')) return;
    event.preventDefault();
    move(...arrow);
  }, {signal});
}
function listenToHeatmap(signal) {
  const canvas = $('heatmap');
  canvas.addEventListener('keydown', event => {
    const arrow = ARROWS[event.key], m = state.matrix;
    if (!arrow || event.shiftKey || !m) return;
    event.preventDefault();
    lookAt('query', clamp(state.query + arrow[0], m.rows - 1), clamp(state.key + arrow[1], m.columns - 1));
  });
  for (const kind of ['pointermove', 'pointerdown']) canvas.addEventListener(kind, event => {
    const cell = heat.cellAt(event.offsetX, event.offsetY);
    if (cell) lookAt('query', ...cell);
  });
  canvas.addEventListener('pointerleave', () => lookFrom(state.pinned));
  const observer = new ResizeObserver(() => { if (state.matrix) { heat.measure(); drawHeatmap(); } });
  observer.observe(canvas.parentElement);
  signal.addEventListener('abort', () => observer.disconnect());
}
