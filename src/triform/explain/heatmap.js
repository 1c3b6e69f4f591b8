'use strict';
// The heat map of the selected view, with a crosshair. This file is loaded before page.js and uses its state and colours.
// The heat map of a view is painted once into `heat.base`, one pixel for each weight; moving the mouse only redraws the crosshair.
const heat = {base: document.createElement('canvas')};
// The colour of a weight, relative to the largest weight of the view, with more contrast for small weights.
// Weights that are not stored have the colour of their mean; a weight of exactly zero has a separate colour.
const LEAST_SHADE = .06;
function shade(m, query, key) {
  const value = m.values[query * m.columns + key];
  if (value === 0) return ramps.zero;
  const t = Math.sqrt((isNaN(value) ? m.mean[query] : value) / (m.most || 1));
  return colour(isNaN(value) ? Math.max(t, LEAST_SHADE) : t);
}
function drawMatrix() {
  const {matrix: m} = state, {base} = heat, most = m.most || 1;
  [base.width, base.height] = [m.columns, m.rows];
  const image = new ImageData(m.columns, m.rows);
  for (let q = 0, i = 0; q < m.rows; q++) {
    for (let k = 0; k < m.columns; k++, i += 4) image.data.set([...shade(m, q, k), 255], i);
  }
  base.getContext('2d').putImageData(image, 0, 0);
  const strip = new ImageData(256, 1);
  for (let i = 0; i < 256; i++) strip.data.set([...colour(Math.sqrt(i / 255)), 255], 4 * i);
  $('ramp').getContext('2d').putImageData(strip, 0, 0);
  $('most').textContent = number(most);
  $('unread').style.visibility = m.values.includes(0) ? '' : 'hidden';
  measureHeatmap();
}
const cut = piece => visible(piece).replace(/^(.{11}).{2,}/su, '$1…');
// Labels need the height of a line: if tokens are closer, every n-th has a label, with its number.
const LABEL = 13;
const sparse = (length, count) => Math.max(1, Math.ceil(LABEL * count / length));
const label = (piece, i, every) => every > 1 ? `${i + 1} ${cut(piece)}` : cut(piece);
function measureHeatmap() {
  const {queries, keys} = shownMap(), canvas = $('heatmap'), context = canvas.getContext('2d');
  const width = canvas.clientWidth, rows = queries.length, columns = keys.length;
  context.font = heat.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const room = (pieces, every) => 8 + pieces.reduce((most, piece, i) =>
    Math.max(most, context.measureText(label(piece, i, every)).width), 0);
  let left, w, h, everyQuery = 1;
  for (let pass = 0; pass < 2; pass++) {  // numbers need space, and with less space more labels need numbers
    left = room(queries, everyQuery);
    w = Math.max(Math.min(width - left - LABEL / 2, 640, 44 * columns), 1);
    h = clamp(Math.max(w / columns * rows, Math.min(120, 44 * rows)), 640);
    everyQuery = sparse(h, rows);
  }
  const everyKey = sparse(w, columns), top = h / rows < LABEL ? LABEL / 2 : 0;  // the first label may be taller than its row
  const scale = window.devicePixelRatio || 1, height = top + h + room(keys, everyKey);
  Object.assign(heat, {left, top, w, h, everyQuery, everyKey});
  canvas.style.height = `${height}px`;
  [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
}
function drawHeatmap() {
  const {matrix: m, query, key} = state, {left, top, w, h} = heat, canvas = $('heatmap'), c = canvas.getContext('2d');
  const scale = window.devicePixelRatio || 1, x = left + (key + .5) * w / m.columns, y = (query + .5) * h / m.rows;
  c.setTransform(scale, 0, 0, scale, 0, top * scale);
  c.clearRect(0, -top, canvas.width, canvas.height);
  c.imageSmoothingEnabled = w * scale < m.columns;
  c.drawImage(heat.base, left, 0, w, h);
  drawLabels(c);
  c.strokeStyle = ink('--cross');
  c.strokeRect(left + key * w / m.columns, query * h / m.rows, Math.max(w / m.columns, 3), Math.max(h / m.rows, 3));
  c.globalAlpha = .55;
  c.beginPath();
  c.moveTo(left, y); c.lineTo(left + w, y); c.moveTo(x, 0); c.lineTo(x, h);
  c.stroke();
  c.globalAlpha = 1;
  const text = weightText(m, query, key);
  c.font = `600 ${heat.font.replace('11px', '12px')}`;
  const wide = c.measureText(text).width + 14;
  const tx = x + 10 + wide > left + w ? Math.max(0, x - 10 - wide) : x + 10, ty = y < 32 ? y + 10 : y - 32;
  c.fillStyle = ink('--ink');
  c.beginPath(); c.roundRect(tx, ty, wide, 22, 5); c.fill();
  c.fillStyle = ink('--card');
  c.textBaseline = 'middle'; c.textAlign = 'left';
  c.fillText(text, tx + 7, ty + 11.5);
  canvas.setAttribute('aria-label', `Heat map, ${$('view-name').textContent}. ${$('from').textContent} reads ${$('to').textContent}: ${text}`);
}
function drawLabels(c) {
  const {queries, keys} = shownMap(), {left, w, h} = heat;
  const each = (pieces, every, chosen, draw) => {
    for (let i = 0; i < pieces.length; i += every) {
      c.fillStyle = ink(i === chosen ? '--ink' : '--soft');
      draw(label(pieces[i], i, every), (i + .5) / pieces.length);
    }
  };
  c.font = heat.font;
  c.textBaseline = 'middle'; c.textAlign = 'right';
  each(queries, heat.everyQuery, state.query, (text, at) => c.fillText(text, left - 6, at * h));
  each(keys, heat.everyKey, state.key, (text, at) => {
    c.save(); c.translate(left + at * w, h + 6); c.rotate(-Math.PI / 2);
    c.fillText(text, 0, 0); c.restore();
  });
}
