// Tokens, colours and numbers that the page of an explanation and the studio share.
// All text is inserted with textContent; nothing is parsed as HTML.

export const $ = id => document.getElementById(id);
export const make = (tag, parent, text = '', name = '') => {
  const node = document.createElement(tag);
  node.textContent = text;
  if (name) node.className = name;
  parent.append(node);
  return node;
};
// A piece as a label. Surrounding spaces are removed (the page shows them as gaps); invisible characters get a symbol.
export const visible = piece => (/^ +$/.test(piece) ? '·' : piece.replace(/^ +| +$/g, ''))
  .replace(/\r\n|\n/g, '⏎').replace(/\t/g, '⇥').replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]/g, '\ufffd') || '∅';
export const quoted = (piece, index) => `${visible(piece).replace(/^(.{39}).{2,}/su, '$1…')} #${index + 1}`;
export const number = value => value.toFixed(4);
export const signed = value => (value < 0 ? '−' : '+') + Math.abs(value).toFixed(4);
export const clamp = (value, most) => Math.max(0, Math.min(most, value));

// Colours come from the style sheet, so that they follow the reader's light or dark scheme.
const ramps = {};
const SHADES = 1024;  // of each ramp
export const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const hex = text => [1, 3, 5].map(at => parseInt(text.slice(at, at + 2), 16));
export function readRamps() {
  for (const name of ['ramp', 'up', 'down']) {
    const stops = ink(`--${name}`).split(' ').map(hex);
    ramps[name] = Array.from({length: SHADES}, (_, i) => {
      const at = i / (SHADES - 1) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
      return stops[low].map((value, channel) => Math.round(value + (stops[low + 1][channel] - value) * (at - low)));
    });
  }
  ramps.zero = hex(ink('--zero'));
}
export const zeroColour = () => ramps.zero;
export const colour = (t, name = 'ramp') => ramps[name][Math.round(clamp(t, 1) * (SHADES - 1))];
export function paint(node, rgb) {
  if (!rgb) { node.style.background = node.style.color = ''; return; }
  const [r, g, b] = rgb.map(value => (value /= 255) <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4);
  node.style.background = `rgb(${rgb})`;
  node.style.color = .2126 * r + .7152 * g + .0722 * b > .179 ? '#10131a' : '#fff';  // the text colour with more contrast
}

// The Tab key stops once at a row of tokens; the arrow keys move inside it.
export function addToken(pane, piece, side, index, description = '') {
  const node = make('button', pane, visible(piece), piece.startsWith(' ') ? 'token apart' : 'token');
  node.type = 'button';
  node.tabIndex = index ? -1 : 0;
  node.dataset.side = side;
  node.dataset.index = index;
  node.setAttribute('aria-label', `${side} ${index + 1}: ${visible(piece)}${description}`);
  return node;
}
export function fillTokens(pane, pieces, side, describe = () => '') {
  pane.replaceChildren();
  return pieces.map((piece, index) => addToken(pane, piece, side, index, describe(index)));
}
const tokenAt = event => event.target.closest?.('.token');
export function listen(pane, enter, pin, leave) {
  pane.addEventListener('pointerover', event => tokenAt(event) && enter(+tokenAt(event).dataset.index));
  pane.addEventListener('focusin', event => {
    if (!tokenAt(event)) return;
    for (const node of pane.querySelectorAll('.token')) node.tabIndex = node === tokenAt(event) ? 0 : -1;
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

// Bars of probabilities: [[label, probability], ...].
export function fillBars(list, probabilities) {
  list.replaceChildren();
  for (const [label, chance] of probabilities) {
    const row = make('li', list);
    make('span', row, label, 'name').dir = 'auto';
    make('span', make('span', row, '', 'track'), '', 'fill').style.width = `${100 * clamp(chance, 1)}%`;
    make('span', row, number(chance), 'num');
  }
}

// Tokens coloured by their attributions: `attributions` are {method, label, pieces, values, total}. `nodes` are the
// elements `select`, `tokens`, `readout` and `sum`. It returns a function that draws the colours again.
export function showAttributions(nodes, attributions) {
  nodes.select.replaceChildren();
  attributions.forEach((each, i) => {
    make('option', nodes.select, `${each.method}, logit of ${each.label}`).value = i;
  });
  let tokens = [], given;
  const say = index => {
    nodes.readout.textContent = `${quoted(given.pieces[index], index)}: ${signed(given.values[index])}`;
    nodes.readout.dataset.value = given.values[index];
  };
  const draw = () => {
    const most = Math.max(...given.values.map(Math.abs)) || 1;
    tokens.forEach((node, i) => paint(node, colour(Math.abs(given.values[i]) / most, given.values[i] < 0 ? 'down' : 'up')));
  };
  const choose = () => {
    given = attributions[nodes.select.value];
    const sum = given.values.reduce((a, b) => a + b, 0);
    tokens = fillTokens(nodes.tokens, given.pieces, 'piece', i => `, ${signed(given.values[i])}`);
    nodes.sum.textContent = `sum of attributions ${signed(sum)}` + (given.total === null ? ''
      : `; logit minus baseline logit ${signed(given.total)}`);
    say(given.values.reduce((best, value, i, all) => Math.abs(value) > Math.abs(all[best]) ? i : best, 0));
    draw();
  };
  listen(nodes.tokens, say, say, () => {});
  nodes.select.addEventListener('change', choose);
  choose();
  return draw;
}
