'use strict';
// The heat map of the chosen view, with a crosshair. Comes before page.js, whose state and colours it uses when called.
// The heat map is painted once a view into `heat.base`, one pixel a weight; a move of the mouse only redraws the cross.
const heat = {base: document.createElement('canvas')};
function drawMatrix() {
  const {matrix: m} = state, {base} = heat, most = m.most || 1;
  [base.width, base.height] = [m.columns, m.rows];
  const image = new ImageData(m.columns, m.rows);
  m.values.forEach((value, i) => image.data.set([...colour(Math.sqrt((value || 0) / most)), 255], 4 * i));
  base.getContext('2d').putImageData(image, 0, 0);
  const strip = new ImageData(256, 1);
  for (let i = 0; i < 256; i++) strip.data.set([...colour(Math.sqrt(i / 255)), 255], 4 * i);
  $('ramp').getContext('2d').putImageData(strip, 0, 0);
  $('most').textContent = number(most);
  measureHeatmap();
}
const cut = piece => visible(piece).replace(/^(.{11}).{2,}/su, '$1…');
function measureHeatmap() {
  const {queries, keys} = shownMap(), canvas = $('heatmap'), context = canvas.getContext('2d');
  const width = canvas.clientWidth, rows = queries.length, columns = keys.length;
  context.font = heat.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const labels = Math.max(rows, columns) <= 40 && (width - 90) / columns > 11;
  const room = pieces => labels ? 8 + Math.max(...pieces.map(piece => context.measureText(cut(piece)).width)) : 0;
  const left = room(queries), w = Math.min(width - left, 640, 44 * columns);
  const h = clamp(Math.max(w / columns * rows, Math.min(120, 44 * rows)), 640);
  const scale = window.devicePixelRatio || 1, height = h + room(keys);
  Object.assign(heat, {left, w, h, labels});
  canvas.style.height = `${height}px`;
  [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
}
function drawHeatmap() {
  const {matrix: m, query, key} = state, {left, w, h} = heat, canvas = $('heatmap'), c = canvas.getContext('2d');
  const scale = window.devicePixelRatio || 1, x = left + (key + .5) * w / m.columns, y = (query + .5) * h / m.rows;
  c.setTransform(scale, 0, 0, scale, 0, 0);
  c.clearRect(0, 0, canvas.width, canvas.height);
  c.imageSmoothingEnabled = w * scale < m.columns;
  c.drawImage(heat.base, left, 0, w, h);
  if (heat.labels) drawLabels(c);
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
  c.font = heat.font;
  c.textBaseline = 'middle'; c.textAlign = 'right';
  queries.forEach((piece, q) => {
    c.fillStyle = ink(q === state.query ? '--ink' : '--soft');
    c.fillText(cut(piece), left - 6, (q + .5) * h / queries.length);
  });
  keys.forEach((piece, k) => {
    c.fillStyle = ink(k === state.key ? '--ink' : '--soft');
    c.save(); c.translate(left + (k + .5) * w / keys.length, h + 6); c.rotate(-Math.PI / 2);
    c.fillText(cut(piece), 0, 0); c.restore();
  });
}
