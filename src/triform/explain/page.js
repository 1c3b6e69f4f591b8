// All text is inserted with textContent; nothing is parsed as HTML.
const $ = id => document.getElementById(id);
const data = JSON.parse($('data').textContent);
const LISTED = 10;

const make = (tag, parent, text = '', name = '') => {
  const node = document.createElement(tag);
  node.textContent = text;
  if (name) node.className = name;
  parent.append(node);
  return node;
};
// A piece as a label. Surrounding spaces are removed (the page shows them as gaps); invisible characters get a symbol.
const visible = piece => (/^ +$/.test(piece) ? '·' : piece.replace(/^ +| +$/g, ''))
  .replace(/\r\n|\n/g, '⏎').replace(/\t/g, '⇥').replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]/g, '\ufffd') || '∅';
// A text of white space only is shown as symbols.
const seen = text => !text || text.trim() ? text
  : `only white space: ${text.replace(/\r\n|\n/g, '⏎').replace(/\t/g, '⇥').replace(/\s/g, '·')}`;
const quoted = (piece, index) => `${visible(piece).replace(/^(.{39}).{2,}/su, '$1…')} #${index + 1}`;
const number = value => value.toFixed(4);
const signed = value => (value < 0 ? '−' : '+') + Math.abs(value).toFixed(4);
const clamp = (value, most) => Math.max(0, Math.min(most, value));

// Colours come from the style sheet, so that they follow the reader's light or dark scheme.
const ramps = {};
const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const hex = text => [1, 3, 5].map(at => parseInt(text.slice(at, at + 2), 16));
function readRamps() {
  for (const name of ['ramp', 'up', 'down']) {
    ramps[name] = ink(`--${name}`).split(' ').map(hex);
  }
  ramps.zero = hex(ink('--zero'));
}
function colour(t, name = 'ramp') {
  const stops = ramps[name], at = clamp(t, 1) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
  return stops[low].map((value, i) => Math.round(value + (stops[low + 1][i] - value) * (at - low)));
}
function paint(node, rgb) {
  if (!rgb) { node.style.background = node.style.color = ''; return; }
  const [r, g, b] = rgb.map(value => (value /= 255) <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4);
  node.style.background = `rgb(${rgb})`;
  node.style.color = .2126 * r + .7152 * g + .0722 * b > .179 ? '#10131a' : '#fff';  // the text colour with more contrast
}

// The Tab key stops once at a row of tokens; the arrow keys move inside it.
function fillTokens(pane, pieces, side, describe = () => '') {
  pane.replaceChildren();
  return pieces.map((piece, index) => {
    const node = make('button', pane, visible(piece), piece.startsWith(' ') ? 'token apart' : 'token');
    node.type = 'button';
    node.tabIndex = index ? -1 : 0;
    node.dataset.side = side;
    node.dataset.index = index;
    node.setAttribute('aria-label', `${side} ${index + 1}: ${visible(piece)}${describe(index)}`);
    return node;
  });
}
const tokenAt = event => event.target.closest?.('.token');
function listen(pane, enter, pin, leave) {
  pane.addEventListener('pointerover', event => tokenAt(event) && enter(+tokenAt(event).dataset.index));
  pane.addEventListener('focusin', event => {
    if (!tokenAt(event)) return;
    for (const node of pane.children) node.tabIndex = node === tokenAt(event) ? 0 : -1;
    enter(+tokenAt(event).dataset.index);
  });
  pane.addEventListener('click', event => tokenAt(event) && pin(+tokenAt(event).dataset.index));
  pane.addEventListener('pointerleave', leave);
  pane.addEventListener('keydown', event => {
    const nodes = [...pane.querySelectorAll('.token')], at = nodes.indexOf(tokenAt(event));
    const to = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: nodes.length - 1}[event.key];
    if (event.shiftKey || at < 0 || to === undefined) return;
    event.preventDefault();
    nodes[clamp(to, nodes.length - 1)].focus();
  });
}

function showFacts() {
  $('title').textContent = data.title;
  $('text').textContent = seen(data.text);
  const plain = data.notes.filter(note => note.startsWith('each row of cross-attention'));
  const notes = data.notes.filter(note => !plain.includes(note));
  $('notes').hidden = !notes.length;
  for (const note of notes) make('li', $('notes'), note).dir = 'auto';
  $('remarks').hidden = !plain.length;
  $('remarks').textContent = plain.join('; ');
  if (data.probabilities.length) {
    $('prediction').hidden = false;
    $('label').textContent = data.output || data.probabilities[0][0];
    for (const [label, chance] of data.probabilities) {
      const row = make('li', $('bars'));
      make('span', row, label, 'name').dir = 'auto';
      make('span', make('span', row, '', 'track'), '', 'fill').style.width = `${100 * clamp(chance, 1)}%`;
      make('span', row, number(chance), 'num');
    }
  } else if (data.output) {
    $('answer').hidden = false;
    $('output').textContent = seen(data.output);
  }
}

function showAttribution() {
  if (!data.attributions.length) return;
  $('attribution').hidden = false;
  data.attributions.forEach((each, i) => {
    make('option', $('attribution-select'), `${each.method}, logit of ${each.label}`).value = i;
  });
  let nodes = [], given;
  const say = index => {
    $('attribution-readout').textContent = `${quoted(given.pieces[index], index)}: ${signed(given.values[index])}`;
    $('attribution-readout').dataset.value = given.values[index];
  };
  const draw = () => {
    const most = Math.max(...given.values.map(Math.abs)) || 1;
    nodes.forEach((node, i) => paint(node, colour(Math.abs(given.values[i]) / most, given.values[i] < 0 ? 'down' : 'up')));
  };
  const choose = () => {
    given = data.attributions[$('attribution-select').value];
    const sum = given.values.reduce((a, b) => a + b, 0);
    nodes = fillTokens($('attribution-tokens'), given.pieces, 'piece', i => `, ${signed(given.values[i])}`);
    $('attribution-sum').textContent = `sum of attributions ${signed(sum)}` + (given.total === null ? ''
      : `; logit minus baseline logit ${signed(given.total)}`);
    say(given.values.reduce((best, value, i, all) => Math.abs(value) > Math.abs(all[best]) ? i : best, 0));
    draw();
  };
  listen($('attribution-tokens'), say, say, () => {});
  $('attribution-select').addEventListener('change', choose);
  redraws.push(draw);
  choose();
}

// A blob of weights is unpacked when it is first needed.
const blobs = new Map();
function bytes(name) {
  if (!blobs.has(name)) {
    const raw = Uint8Array.from(atob($(name).textContent), c => c.charCodeAt(0));
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream('deflate'));
    blobs.set(name, new Response(stream).arrayBuffer().then(buffer => new Uint8Array(buffer)));
  }
  return blobs.get(name);
}
// The weights of one view, row by row. NaN marks a weight that is not stored; then `least` holds the smallest stored
// weight of each row, and `mean` the average of the weights that are not stored.
async function unpack(shown, number, layer, view) {
  const all = await bytes(`blob-${number}-${layer}`), {kind} = data.packing;
  const rows = shown.queries.length, columns = shown.keys.length, size = rows * columns, total = size * shown.views.length;
  const matrix = {values: new Float64Array(size), least: null, mean: null, rows, columns};
  if (kind === 'float32') {
    const word = new DataView(new ArrayBuffer(4));
    for (let i = 0, at = view * size; i < size; i++, at++) {
      for (let rank = 0; rank < 4; rank++) word.setUint8(rank, all[rank * total + at]);
      matrix.values[i] = word.getFloat32(0, true);
    }
  } else if (kind === 'uint16') {
    for (let i = 0, at = view * size; i < size; i++, at++) matrix.values[i] = (all[at] + 256 * all[total + at]) / 65535;
  } else {
    const kept = Math.min(data.packing.kept, columns), entries = kept * rows * shown.views.length;
    matrix.values.fill(NaN);
    if (kept < columns) [matrix.least, matrix.mean] = [new Float64Array(rows).fill(1), new Float64Array(rows)];
    for (let row = 0, at = view * rows * kept; row < rows; row++) {
      for (let i = 0, key = 0; i < kept; i++, at++) {
        key += all[at] + 256 * all[entries + at];
        const value = (all[2 * entries + at] + 256 * all[3 * entries + at]) / 65535;
        matrix.values[row * columns + key] = value;
        if (matrix.least) matrix.least[row] = Math.min(matrix.least[row], value);
      }
      if (matrix.least) settle(matrix, row, all.subarray(4 * entries), view * rows + row, rows * shown.views.length);
    }
  }
  matrix.most = matrix.values.reduce((a, b) => b > a ? b : a, 0);
  return matrix;
}
// Weights that are not stored are zero outside the range of keys that were read, and if a stored weight is zero.
function settle(m, row, spans, at, count) {
  const values = rowOf(m, row), word = i => spans[i] + 256 * spans[2 * count + i];
  const first = m.least[row] ? word(at) : m.columns, last = word(count + at);
  let sum = 0, left = 0;
  values.forEach((value, key) => {
    if (!isNaN(value)) sum += value;
    else if (key < first || key > last) values[key] = 0;
    else left++;
  });
  m.mean[row] = left ? Math.max(0, 1 - sum) / left : 0;
}
const weightText = (m, q, k) => {
  const value = m.values[q * m.columns + k];
  return value === 0 ? '0, not read' : isNaN(value) ? `≤ ${number(Math.max(m.least[q], .0001))}` : number(value);
};
const rowOf = (m, q) => m.values.subarray(q * m.columns, (q + 1) * m.columns);
const columnOf = (m, k) => Float64Array.from({length: m.rows}, (_, q) => m.values[q * m.columns + k]);
const strongest = values => values.reduce((best, value, i) => value > (values[best] || 0) ? i : best, 0);

// The selected view, the pinned query, and the current query and key. `side` is the list that the pointer is on.
const state = {map: 0, layer: 0, view: 0, matrix: null, pinned: 0, query: 0, key: 0, side: 'query'};
const redraws = [];
let tokens = {query: [], key: []};
const shownMap = () => data.maps[state.map];

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
  markEntropy();
  const {map, layer, view} = state, matrix = await unpack(shown, map, layer, view);
  if (map !== state.map || layer !== state.layer || view !== state.view) return;  // another view was selected meanwhile
  state.matrix = matrix;
  drawMatrix();
  state.side === 'query' ? lookFrom(state.query) : lookAt(state.side, state.query, state.key);
  $('heatmap').dataset.shown = `${map} ${layer} ${view}`;
}

function enterMap(shown) {
  const options = (select, names) => {
    select.replaceChildren();
    names.forEach((name, i) => { make('option', select, name).value = i; });
  };
  options($('layer-select'), Array.from({length: shown.layers}, (_, i) => `layer ${i + 1}`));
  options($('head-select'), shown.views);
  tokens = {query: fillTokens($('queries'), shown.queries, 'query'), key: fillTokens($('keys'), shown.keys, 'key')};
  const start = Math.min(Math.floor(shown.queries.length / 2), 20);  // the first query may read only itself
  Object.assign(state, {matrix: null, side: 'query', query: start, pinned: start, key: 0});
  $('list').style.minHeight = `${25 * Math.min(LISTED, Math.max(shown.queries.length, shown.keys.length))}px`;
  $('rollout-note').hidden = !shown.views.includes('rollout');
  fillEntropy(shown);
  fillSums(shown);
}

function move(layers, views) {
  const shown = shownMap();
  choose({layer: clamp(state.layer + layers, shown.layers - 1), view: clamp(state.view + views, shown.views.length - 1)});
}
const ARROWS = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};

function fillEntropy(shown) {
  const table = $('entropy');
  table.replaceChildren();
  const head = make('tr', make('thead', table)), body = make('tbody', table);
  make('td', head);
  for (let i = 0; i < shown.heads; i++) make('th', head, i + 1).setAttribute('aria-label', `head ${i + 1}`);
  shown.entropy.forEach((row, layer) => {
    const line = make('tr', body);
    make('th', line, layer + 1).setAttribute('aria-label', `layer ${layer + 1}`);
    row.forEach((bits, view) => {
      const cell = make('button', make('td', line), bits.toFixed(shown.heads > 8 ? 1 : 2));
      Object.assign(cell.dataset, {layer, view, bits});
      cell.type = 'button';
      cell.setAttribute('aria-label', `layer ${layer + 1}, head ${view + 1}: ${bits.toFixed(4)} bits`);
      cell.title = `${bits.toFixed(4)} bits`;
    });
  });
  $('entropy-note').textContent = 'Rows are layers, columns are heads. Click a cell to show that head. '
    + 'At 0 bits, every query reads a single key. '
    + `At ${shown.most_bits.toFixed(2)} bits, the maximum here, every query gives the same weight to all keys that it may read.`;
  paintEntropy();
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
function paintEntropy() {
  const most = shownMap().most_bits || 1;
  for (const cell of $('entropy').querySelectorAll('button')) paint(cell, colour(cell.dataset.bits / most));
}
function markEntropy() {
  const cells = [...$('entropy').querySelectorAll('button')];
  const on = cells.find(cell => +cell.dataset.layer === state.layer && +cell.dataset.view === state.view);
  for (const cell of cells) {
    cell.setAttribute('aria-pressed', cell === on);
    cell.tabIndex = cell === (on || cells[0]) ? 0 : -1;
  }
  if (on && document.activeElement?.closest('#entropy')) on.focus();
}

function begin() {
  readRamps();
  showFacts();
  showAttribution();
  if (!data.maps.length) return;
  $('attention').hidden = false;
  $('map-field').hidden = data.maps.length < 2;
  data.maps.forEach((each, i) => { make('option', $('map-select'), each.heading).value = i; });
  const {kind, kept} = data.packing, widest = Math.max(...data.maps.map(each => each.keys.length));
  $('packing').hidden = kind === 'float32';
  $('packing').textContent = kind === 'uint16' || kept >= widest ? 'To keep this page small, weights are rounded to multiples of 1/65535.'
    : `To keep this page small, only the ${kept} largest of up to ${widest} weights in each row are stored, rounded to multiples of 1/65535. `
    + 'Other weights are shown as ≤ the smallest stored weight, and coloured by their average.';
  $('map-select').addEventListener('change', event => choose({map: +event.target.value, layer: 0, view: 0}));
  $('layer-select').addEventListener('change', event => choose({layer: +event.target.value}));
  $('head-select').addEventListener('change', event => choose({view: +event.target.value}));
  const back = () => lookFrom(state.pinned);
  listen($('queries'), lookFrom, pin, back);
  listen($('keys'), lookTo, lookTo, back);
  $('entropy').addEventListener('click', event => {
    const cell = event.target.closest('button');
    if (cell) choose({layer: +cell.dataset.layer, view: +cell.dataset.view});
  });
  document.addEventListener('keydown', event => {
    const table = event.target.closest?.('#entropy'), arrow = ARROWS[event.key];
    if (!arrow || !(event.shiftKey || table) || event.target.closest?.('select')) return;
    event.preventDefault();
    move(...arrow);
  });
  $('heatmap').addEventListener('keydown', event => {
    const arrow = ARROWS[event.key], m = state.matrix;
    if (!arrow || event.shiftKey || !m) return;
    event.preventDefault();
    lookAt('query', clamp(state.query + arrow[0], m.rows - 1), clamp(state.key + arrow[1], m.columns - 1));
  });
  for (const kind of ['pointermove', 'pointerdown']) $('heatmap').addEventListener(kind, event => {
    const m = state.matrix, x = event.offsetX - heat.left, y = event.offsetY - heat.top;
    if (!m || x < 0 || x >= heat.w || y < 0 || y >= heat.h) return;
    lookAt('query', Math.floor(y / heat.h * m.rows), Math.floor(x / heat.w * m.columns));
  });
  $('heatmap').addEventListener('pointerleave', back);
  const repaint = () => { if (state.matrix) { measureHeatmap(); drawHeatmap(); } };
  new ResizeObserver(repaint).observe($('heatmap').parentElement);
  redraws.push(() => { if (state.matrix) { paintEntropy(); drawMatrix(); colourTokens(); drawHeatmap(); } });
  choose({});
}
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  readRamps();
  for (const redraw of redraws) redraw();
});
begin();
