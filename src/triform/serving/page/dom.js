// Elements and formats that the tabs share. All text is inserted as text nodes; nothing is parsed as HTML.

// Create an element. A property becomes an attribute, except `class`, `dataset`, handlers (functions, named as events)
// and booleans, which are set as properties of the element.
export function create(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name === 'dataset') Object.assign(node.dataset, value);
    else if (typeof value === 'function') node.addEventListener(name, value);
    else if (typeof value === 'boolean' && name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
  return node;
}

// -- numbers and times

export const formatCount = value => Number.isFinite(value) ? Math.round(value).toLocaleString('en-US') : '–';
// Four significant digits, as in the report.
export const formatNumber = value => !Number.isFinite(value) ? '–'
  : Math.abs(value) >= 1000 ? formatCount(value)
  : value !== 0 && Math.abs(value) < 1e-4 ? value.toExponential(2) : String(+value.toPrecision(4));
// `info` is a metric as the API describes it: {title, scale, unit, decimals}.
export const formatMetric = (info, value) => !Number.isFinite(value) ? '–'
  : !info || info.decimals === null ? formatNumber(value)
  : (info.scale * value).toFixed(info.decimals).replace(/\d(?=(\d{3})+\.)/g, '$&,') + info.unit;
export function formatDuration(seconds) {
  if (!Number.isFinite(seconds)) return '–';
  if (seconds < 0.9995) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds), hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  if (hours) return `${hours} h ${String(minutes).padStart(2, '0')} min`;
  return minutes ? `${minutes} min ${String(whole % 60).padStart(2, '0')} s` : `${whole} s`;
}
export function formatBytes(bytes) {
  const units = ['bytes', 'kB', 'MB', 'GB', 'TB'];
  const power = bytes < 1000 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(bytes) / 3));
  return power ? `${(bytes / 1000 ** power).toPrecision(3)} ${units[power]}` : `${bytes} bytes`;
}
export const formatTime = iso => iso ? iso.replace('T', ' ').slice(0, 16) : '–';

// -- components

export const createSection = (title, ...content) => create('section', {}, create('h2', {}, title), ...content);
export const createButton = (label, onClick, properties = {}) =>
  create('button', {type: 'button', click: onClick, ...properties}, label);
export const createEmptyNote = text => create('p', {class: 'empty'}, text);

export function createStatCard(name, value, note = '', ...extra) {
  const css = String(value).length > 10 ? 'value long' : 'value';
  return create('div', {class: 'tile'}, create('dt', {}, name), create('dd', {class: css}, value),
    create('dd', {class: 'note'}, note, ...extra));
}

// A box that lists each text once; null without texts.
export function createNotices(title, texts, {warning = false} = {}) {
  const items = [...new Set(texts)].map(text => create('li', {dir: 'auto'}, text));
  return items.length ? create('section', {class: `notices ${warning ? 'warnings' : 'card'}`},
    create('h2', {}, title), create('ul', {}, ...items)) : null;
}

export function createErrorNotice(error, retry) {
  const box = create('section', {class: 'notices warnings', role: 'alert'}, create('p', {}, error.message));
  if (retry) box.append(createButton('Try again', retry));
  return box;
}

// The state of a run as a coloured word.
const STATE_TONES = {starting: 'live', training: 'live', stopping: 'warn', finished: '', stopped: 'warn', failed: 'warn', damaged: 'warn'};
export const createStatePill = state => create('span', {class: `pill ${STATE_TONES[state] ?? ''}`}, state);

// A table. `columns` are {title, numeric}; a cell is a text or an element. The first cell of a row is its heading.
export function createTable(columns, rows, {caption = ''} = {}) {
  const head = columns.map(column => create('th', {scope: 'col', class: column.numeric ? 'num' : ''}, column.title));
  const body = rows.map(cells => create('tr', {}, ...cells.map((cell, i) =>
    create(i ? 'td' : 'th', i ? {class: columns[i].numeric ? 'num' : ''} : {scope: 'row'}, cell))));
  return create('div', {class: 'card wide'}, create('table', {},
    caption && create('caption', {class: 'hidden'}, caption),
    create('thead', {}, create('tr', {}, ...head)), create('tbody', {}, ...body)));
}

// Ask in a modal dialog. It resolves to whether the person chose the action; Escape and Cancel choose not to.
export function openDialog({title, content, action, danger = false}) {
  return new Promise(resolve => {
    const dialog = create('dialog', {'aria-labelledby': 'dialog-title'});
    const form = create('form', {method: 'dialog', submit: () => { dialog.returnValue = 'accepted'; }},
      create('h2', {id: 'dialog-title'}, title), ...content,
      create('div', {class: 'buttons'},
        createButton('Cancel', () => dialog.close('')),
        create('button', {type: 'submit', value: 'accepted', class: danger ? 'danger' : 'primary'}, action)));
    dialog.append(form);
    dialog.addEventListener('close', () => {
      resolve(dialog.returnValue === 'accepted');
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

// Say whether the server answers, in the corner of the page.
export function showConnection(isConnected, error) {
  const node = document.getElementById('connection');
  node.hidden = isConnected;
  node.textContent = isConnected ? '' : error.message;
}

// Put values into the query of the address without a visit to the tab. Empty values are removed.
export function replaceQuery(values) {
  const [address, query = ''] = location.hash.split('?');
  const parameters = new URLSearchParams(query);
  for (const [name, value] of Object.entries(values)) value ? parameters.set(name, value) : parameters.delete(name);
  const text = parameters.toString();
  history.replaceState(null, '', address + (text ? `?${text}` : ''));
}
