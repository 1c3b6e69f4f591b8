// The heat map of a matrix of weights, with a crosshair.
import {clamp, colour, ink, number, visible, zeroColour} from './components.js';

// A matrix is {values, rows, columns, most}: the weights row by row, and the largest one. NaN marks a weight that is not
// stored; then `least` holds the smallest stored weight of each row, and `mean` the average of those that are not stored.
// The colour of a weight is relative to the largest weight, with more contrast for small weights.
// Weights that are not stored have the colour of their mean; a weight of exactly zero has a separate colour.
const LEAST_SHADE = .06;
export function shade(m, query, key) {
  const value = m.values[query * m.columns + key];
  if (value === 0) return zeroColour();
  const t = Math.sqrt((isNaN(value) ? m.mean[query] : value) / (m.most || 1));
  return colour(isNaN(value) ? Math.max(t, LEAST_SHADE) : t);
}
export const rowOf = (m, q) => m.values.subarray(q * m.columns, (q + 1) * m.columns);
export const weightText = (m, q, k) => {
  const value = m.values[q * m.columns + k];
  return value === 0 ? '0, not read' : isNaN(value) ? `≤ ${number(Math.max(m.least[q], .0001))}` : number(value);
};

// Draw one pixel for each value that `rgbAt(row, column)` gives a colour.
export function drawPixels(canvas, rows, columns, rgbAt) {
  [canvas.width, canvas.height] = [columns, rows];
  const image = new ImageData(columns, rows);
  for (let row = 0, i = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++, i += 4) {
      const rgb = rgbAt(row, column);
      image.data[i] = rgb[0]; image.data[i + 1] = rgb[1]; image.data[i + 2] = rgb[2]; image.data[i + 3] = 255;
    }
  }
  canvas.getContext('2d').putImageData(image, 0, 0);
}
export function drawLegend(canvas) {
  drawPixels(canvas, 1, 256, (_, i) => colour(Math.sqrt(i / 255)));
}

const cut = piece => visible(piece).replace(/^(.{11}).{2,}/su, '$1…');
// Labels need the height of a line: if tokens are closer, every n-th has a label, with its number.
const LABEL = 13;
const sparse = (length, count) => Math.max(1, Math.ceil(LABEL * count / length));
const label = (piece, i, every) => every > 1 ? `${i + 1} ${cut(piece)}` : cut(piece);

export class Heatmap {
  #canvas;
  #font = '';
  #labels = {queries: [], keys: []};
  #matrix = null;

  constructor(canvas) {
    this.#canvas = canvas;
    this.base = document.createElement('canvas');  // painted once; moving the mouse only redraws the crosshair
  }

  // Paint a matrix whose rows and columns have these labels. `draw` shows it.
  paint(matrix, queries, keys) {
    this.#matrix = matrix;
    this.#labels = {queries, keys};
    drawPixels(this.base, matrix.rows, matrix.columns, (query, key) => shade(matrix, query, key));
    this.measure();
  }

  // Fit the canvas to the width of the page.
  measure() {
    if (!this.#matrix) return;
    const {queries, keys} = this.#labels, canvas = this.#canvas, context = canvas.getContext('2d');
    const width = canvas.clientWidth, rows = queries.length, columns = keys.length;
    context.font = this.#font = `11px ${getComputedStyle(document.body).fontFamily}`;
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
    Object.assign(this, {left, top, w, h, everyQuery, everyKey});
    canvas.style.height = `${height}px`;
    [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  }

  // Return the query and the key under a point of the canvas, or null.
  cellAt(offsetX, offsetY) {
    const m = this.#matrix, x = offsetX - this.left, y = offsetY - this.top;
    if (!m || x < 0 || x >= this.w || y < 0 || y >= this.h) return null;
    return [Math.floor(y / this.h * m.rows), Math.floor(x / this.w * m.columns)];
  }

  // Draw the map with the crosshair at a query and a key.
  draw(query, key) {
    if (!this.#matrix) return;
    const m = this.#matrix, {left, top, w, h} = this, canvas = this.#canvas, c = canvas.getContext('2d');
    const scale = window.devicePixelRatio || 1, x = left + (key + .5) * w / m.columns, y = (query + .5) * h / m.rows;
    c.setTransform(scale, 0, 0, scale, 0, top * scale);
    c.clearRect(0, -top, canvas.width, canvas.height);
    c.imageSmoothingEnabled = w * scale < m.columns;
    c.drawImage(this.base, left, 0, w, h);
    this.#drawLabels(c, query, key);
    c.strokeStyle = ink('--cross');
    c.strokeRect(left + key * w / m.columns, query * h / m.rows, Math.max(w / m.columns, 3), Math.max(h / m.rows, 3));
    c.globalAlpha = .55;
    c.beginPath();
    c.moveTo(left, y); c.lineTo(left + w, y); c.moveTo(x, 0); c.lineTo(x, h);
    c.stroke();
    c.globalAlpha = 1;
    const text = weightText(m, query, key);
    c.font = `600 ${this.#font.replace('11px', '12px')}`;
    const wide = c.measureText(text).width + 14;
    const tx = x + 10 + wide > left + w ? Math.max(0, x - 10 - wide) : x + 10, ty = y < 32 ? y + 10 : y - 32;
    c.fillStyle = ink('--ink');
    c.beginPath(); c.roundRect(tx, ty, wide, 22, 5); c.fill();
    c.fillStyle = ink('--card');
    c.textBaseline = 'middle'; c.textAlign = 'left';
    c.fillText(text, tx + 7, ty + 11.5);
  }

  #drawLabels(c, query, key) {
    const {queries, keys} = this.#labels, {left, w, h} = this, strong = ink('--ink'), soft = ink('--soft');
    const each = (pieces, every, chosen, draw) => {
      for (let i = 0; i < pieces.length; i += every) {
        c.fillStyle = i === chosen ? strong : soft;
        draw(label(pieces[i], i, every), (i + .5) / pieces.length);
      }
    };
    c.font = this.#font;
    c.textBaseline = 'middle'; c.textAlign = 'right';
    each(queries, this.everyQuery, query, (text, at) => c.fillText(text, left - 6, at * h));
    each(keys, this.everyKey, key, (text, at) => {
      c.save(); c.translate(left + at * w, h + 6); c.rotate(-Math.PI / 2);
      c.fillText(text, 0, 0); c.restore();
    });
  }
}
