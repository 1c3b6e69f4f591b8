// The page of an explanation. All text is inserted with textContent; nothing is parsed as HTML.
import {createAttentionView} from './attention_view.js';
import {$, fillBars, make, readRamps, showAttributions} from './components.js';
import {rowOf} from './heatmap.js';

const data = JSON.parse($('data').textContent);

// A text of white space only is shown as symbols.
const seen = text => !text || text.trim() ? text
  : `only white space: ${text.replace(/\r\n|\n/g, '⏎').replace(/\t/g, '⇥').replace(/\s/g, '·')}`;

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
    fillBars($('bars'), data.probabilities);
  } else if (data.output) {
    $('answer').hidden = false;
    $('output').textContent = seen(data.output);
  }
}

function showAttribution() {
  if (!data.attributions.length) return;
  $('attribution').hidden = false;
  redraws.push(showAttributions({
    select: $('attribution-select'), tokens: $('attribution-tokens'), readout: $('attribution-readout'), sum: $('attribution-sum'),
  }, data.attributions));
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

const redraws = [readRamps];
function begin() {
  readRamps();
  showFacts();
  showAttribution();
  if (!data.maps.length) return;
  $('attention').hidden = false;
  const {kind, kept} = data.packing, widest = Math.max(...data.maps.map(each => each.keys.length));
  $('packing').hidden = kind === 'float32';
  $('packing').textContent = kind === 'uint16' || kept >= widest ? 'To keep this page small, weights are rounded to multiples of 1/65535.'
    : `To keep this page small, only the ${kept} largest of up to ${widest} weights in each row are stored, rounded to multiples of 1/65535. `
    + 'Other weights are shown as ≤ the smallest stored weight, and coloured by their average.';
  const load = (map, layer, view) => unpack(data.maps[map], map, layer, view);
  redraws.push(createAttentionView($('attention-view'), {maps: data.maps, load}).redraw);
}
const redrawAll = () => { for (const redraw of redraws) redraw(); };
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redrawAll);
begin();

// In a notebook, the frame tells this page the theme of the notebook, and is as high as the page.
const reportHeight = () => parent.postMessage({height: document.body.scrollHeight}, '*');
if (document.documentElement.classList.contains('inline')) {
  addEventListener('message', event => {
    if (event.source !== parent || !['light', 'dark'].includes(event.data)) return;
    document.documentElement.dataset.theme = event.data;
    redrawAll();
    reportHeight();
  });
  new ResizeObserver(reportHeight).observe(document.body);
}
