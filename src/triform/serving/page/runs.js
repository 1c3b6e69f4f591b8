// The tab Runs: a live table of all runs. It can be filtered and sorted, and runs of several seeds form groups.

import {encodeId, getJson, poll} from './api.js';
import {createChart} from './charts.js';
import {
  create, createButton, createEmptyNote, createErrorNotice, createStatePill, formatCount, formatMetric, formatTime,
  replaceQuery, showConnection,
} from './dom.js';

const POLL_SECONDS = 2;
const STATES = ['training', 'finished', 'stopped', 'failed', 'damaged'];
const metricValue = entry => entry.metric?.value ?? null;
// A column: its title, the value that it is sorted by, and whether a first click sorts from high to low.
const COLUMNS = [
  {key: 'run', title: 'Run', value: entry => entry.id},
  {key: 'task', title: 'Task', wide: true, value: entry => entry.task},
  {key: 'data', title: 'Data', wide: true, value: entry => entry.data},
  {key: 'metric', title: 'Metric', value: metricValue, numeric: true, descending: true},
  {key: 'state', title: 'State', value: entry => STATES.indexOf(entry.state)},
  {key: 'step', title: 'Step', wide: true, value: entry => entry.step, numeric: true, descending: true},
  {key: 'started', title: 'Started', wide: true, value: entry => entry.started, descending: true},
];

export function render(container, {query}) {
  const state = {
    answer: null, filter: query.get('filter') ?? '', task: query.get('task') ?? '', status: query.get('state') ?? '',
    sort: query.get('sort') ?? 'started', descending: query.get('order') !== 'up', grouped: query.get('flat') === null,
    selected: new Set(), open: new Set(), rows: new Map(), charts: new Map(),
  };
  const lead = create('p', {class: 'lead'});
  const body = create('tbody');
  const empty = createEmptyNote('');
  const error = create('div');
  const {controls, count, compareButton} = createControls(state, () => update());
  const headings = createHeadings(state, () => update());
  const table = create('div', {class: 'card wide'}, create('table', {class: 'runs'},
    create('caption', {class: 'hidden'}, 'Runs'), create('thead', {}, create('tr', {}, headings)), body));
  container.append(create('h1', {}, 'Runs'), lead, controls, error, table, empty);

  function update() {
    if (!state.answer) return;
    replaceQuery({filter: state.filter, task: state.task, state: state.status,
      sort: state.sort === 'started' ? '' : state.sort, order: state.descending ? '' : 'up', flat: state.grouped ? '' : '1'});
    const {runs} = state.answer;
    const chosen = runs.filter(run => matches(run, state));
    const entries = sortEntries(state.grouped ? groupSeeds(chosen) : chosen, state);
    const nodes = entries.flatMap(entry => entry.runs ? groupNodes(entry, state, update) : [runNode(entry, state, update)]);
    if (body.children.length !== nodes.length || nodes.some((node, i) => body.children[i] !== node)) {
      const focused = document.activeElement;  // moving a row loses its focus
      body.replaceChildren(...nodes);
      if (body.contains(focused)) focused.focus({preventScroll: true});
    }
    count.textContent = chosen.length === runs.length ? `${formatCount(runs.length)} runs`
      : `${formatCount(chosen.length)} of ${formatCount(runs.length)} runs`;
    table.hidden = !chosen.length;
    empty.hidden = Boolean(chosen.length);
    empty.textContent = runs.length ? 'No run matches the filter.' : 'There are no runs yet. Start one in the tab Train.';
    compareButton.disabled = !state.selected.size;
    compareButton.textContent = state.selected.size ? `Compare ${state.selected.size}` : 'Compare';
    headings.forEach((heading, i) => {
      if (!i) return;
      const isSorted = COLUMNS[i - 1].key === state.sort;
      isSorted ? heading.setAttribute('aria-sort', state.descending ? 'descending' : 'ascending')
        : heading.removeAttribute('aria-sort');
      heading.querySelector('.arrow').textContent = isSorted ? (state.descending ? ' ↓' : ' ↑') : '';
    });
  }

  const stop = poll(async signal => {
    const answer = await getJson('api/runs', {signal});
    error.replaceChildren();
    state.answer = answer;
    lead.textContent = !answer.folder ? '' : `Folder: ${answer.folder}`
      + (answer.is_complete ? '' : '. It contains too many folders, so only those near the top were searched.');
    const ids = new Set(answer.runs.map(run => run.id));
    state.selected.forEach(id => { if (!ids.has(id)) state.selected.delete(id); });
    update();
  }, POLL_SECONDS, (isConnected, failure) => {
    showConnection(isConnected || failure?.status > 0, failure);
    if (failure?.status > 0) error.replaceChildren(createErrorNotice(failure));
  });
  return () => {
    stop();
    state.charts.forEach(entry => entry.chart.destroy());
  };
}

function createControls(state, update) {
  const search = create('input', {type: 'search', placeholder: 'Filter by name, task or data', value: state.filter,
    'aria-label': 'Filter runs', input: event => { state.filter = event.target.value; update(); }});
  const select = (label, key, names) => create('label', {}, label, create('select', {
    'aria-label': label, change: event => { state[key] = event.target.value; update(); },
  }, create('option', {value: ''}, 'all'), names.map(name => create('option', {value: name, selected: state[key] === name}, name))));
  const group = create('input', {type: 'checkbox', checked: state.grouped,
    change: event => { state.grouped = event.target.checked; update(); }});
  const compareButton = createButton('Compare', () => {
    location.hash = `#/compare?${new URLSearchParams([...state.selected].map(id => ['run', id]))}`;
  }, {disabled: true});
  const count = create('span', {class: 'count', role: 'status'});
  const controls = create('div', {class: 'controls'}, search, select('Task', 'task', ['classify', 'generate', 'translate']),
    select('State', 'status', STATES), create('label', {}, group, 'Group seeds'), compareButton, count);
  return {controls, count, compareButton};
}

function createHeadings(state, update) {
  return [create('th', {scope: 'col'}, create('span', {class: 'hidden'}, 'Selected')), ...COLUMNS.map(column =>
    create('th', {scope: 'col', class: `${column.numeric ? 'num' : ''}${column.wide ? ' wide-only' : ''}`}, createButton([column.title, create('span', {class: 'arrow'})], () => {
      state.descending = state.sort === column.key ? !state.descending : Boolean(column.descending);
      state.sort = column.key;
      update();
    }, {class: 'plain'})))];
}

function matches(run, {filter, task, status}) {
  const text = `${run.id} ${run.task} ${run.data} ${run.kind}`.toLowerCase();
  return (!task || run.task === task) && (!status || run.state === status)
    && filter.toLowerCase().split(/\s+/).every(word => text.includes(word));
}

// Runs of one folder of seeds become one entry, whose metric and step are the means.
function groupSeeds(runs) {
  const groups = new Map();
  return runs.flatMap(run => {
    if (!run.group) return [run];
    if (groups.has(run.group)) { groups.get(run.group).runs.push(run); return []; }
    const entry = {id: run.group, runs: [run]};
    groups.set(run.group, entry);
    return [entry];
  }).map(entry => entry.runs ? describeGroup(entry) : entry);
}

function describeGroup({id, runs}) {
  const values = runs.map(metricValue).filter(value => value !== null);
  const mean = key => runs.reduce((sum, run) => sum + (run[key] ?? 0), 0) / runs.length;
  const [first] = runs;
  return {
    id, runs, task: first.task, data: first.data, step: mean('step'), max_steps: mean('max_steps'),
    state: STATES.find(name => runs.some(run => run.state === name)),
    metric: values.length ? {...first.metric, value: values.reduce((a, b) => a + b) / values.length} : null,
    started: runs.map(run => run.started ?? '').sort()[0] || null,
  };
}

function sortEntries(entries, {sort, descending}) {
  const {value} = COLUMNS.find(column => column.key === sort) ?? COLUMNS.at(-1);
  const compare = (a, b) => typeof a === 'string' ? a.localeCompare(b, 'en', {numeric: true}) : a - b;
  return [...entries].sort((a, b) => {
    const [left, right] = [value(a), value(b)];
    if (left === null || right === null) return (left === null) - (right === null) || compare(a.id, b.id);
    return (descending ? -1 : 1) * compare(left, right) || compare(a.id, b.id);
  });
}

// -- rows; a row is built again only when its run has changed

function keepRow(state, key, content, build) {
  const signature = JSON.stringify(content);
  const known = state.rows.get(key);
  if (known?.signature === signature) return known.node;
  const node = build();
  state.rows.set(key, {signature, node});
  return node;
}

function createCheckbox(ids, label, state, update) {
  return create('td', {}, create('input', {
    type: 'checkbox', 'aria-label': `Select ${label}`, checked: ids.every(id => state.selected.has(id)),
    change: event => {
      ids.forEach(id => event.target.checked ? state.selected.add(id) : state.selected.delete(id));
      update();
    },
  }));
}

function runNode(run, state, update, isMember = false) {
  return keepRow(state, run.id, [run, isMember, state.selected.has(run.id)], () =>
    create('tr', {class: isMember ? 'member' : '', dataset: {run: run.id}},
      createCheckbox([run.id], run.id, state, update),
      create('th', {scope: 'row'}, create('a', {href: `#/run/${encodeId(run.id)}`, class: 'run-name'},
        isMember ? run.name : run.id), createNarrowHint(run)),
      ...cells(run, run.metric ? `${run.metric.text}` : '–')));
}

function cells(entry, metricText) {
  const title = entry.metric?.title ?? '';
  return [
    create('td', {class: 'wide-only'}, entry.task), create('td', {class: 'wide-only'}, entry.data),
    create('td', {class: 'num'}, metricText, create('div', {class: 'hint'}, title)),
    create('td', {}, createStatePill(entry.state), entry.error && create('div', {class: 'hint wrap'}, entry.error)),
    create('td', {class: 'num wide-only'}, formatCount(entry.step ?? NaN), createProgress(entry)),
    create('td', {class: 'time wide-only'}, formatTime(entry.started)),
  ];
}

// In a narrow window, the columns Task, Data, Step and Started are hidden.
const createNarrowHint = entry => create('div', {class: 'hint narrow'},
  [entry.task, entry.data, `step ${formatCount(entry.step ?? NaN)}`].filter(Boolean).join(' · '));

const createProgress = entry => entry.state === 'training' && entry.max_steps
  ? create('progress', {max: entry.max_steps, value: entry.step ?? 0, 'aria-label': 'progress'}) : null;

function groupNodes(group, state, update) {
  const isOpen = state.open.has(group.id), ids = group.runs.map(run => run.id);
  const toggle = () => {
    isOpen ? state.open.delete(group.id) : state.open.add(group.id);
    update();
    document.getElementById(`group-${group.id}`)?.focus();
  };
  const format = state.answer.metrics[group.metric?.name];
  const text = group.metric ? `mean ${formatMetric(format, group.metric.value)}` : '–';
  const row = keepRow(state, `group ${group.id}`, [group, isOpen, ids.map(id => state.selected.has(id))], () =>
    create('tr', {class: 'group-row', dataset: {group: group.id}},
      createCheckbox(ids, group.id, state, update),
      create('th', {scope: 'row'}, createButton(`${isOpen ? '▾' : '▸'} ${group.id}`, toggle,
        {class: 'plain', 'aria-expanded': String(isOpen), id: `group-${group.id}`}),
      create('span', {class: 'hint'}, `${ids.length} seeds`), createNarrowHint(group)),
      ...cells(group, text)));
  if (!isOpen) return [row];
  return [row, chartRow(group, state), ...group.runs.map(run => runNode(run, state, update, true))];
}

// The mean curve of a group with its band. It is loaded again when a run of the group has made progress.
function chartRow(group, state) {
  const signature = group.runs.map(run => `${run.id} ${run.step} ${run.state}`).join('\n');
  let entry = state.charts.get(group.id);
  if (!entry) {
    const chart = createChart({title: group.metric?.title ?? 'Loss', metric: state.answer.metrics[group.metric?.name]});
    const node = create('tr', {class: 'group-chart'}, create('td', {colspan: COLUMNS.length + 1}, chart.node));
    entry = {chart, node, signature: ''};
    state.charts.set(group.id, entry);
  }
  if (entry.signature !== signature) {
    entry.signature = signature;
    loadMeanCurve(group, entry.chart);
  }
  return entry.node;
}

async function loadMeanCurve(group, chart) {
  try {
    const comparison = await getJson(`api/compare?${new URLSearchParams(group.runs.map(run => ['run', run.id]))}`);
    const curves = comparison.curves.find(curve => curve.title.startsWith('Validation') && curve.metric === comparison.metric)
      ?? comparison.curves[0];
    chart.update((curves?.series ?? []).map(series => ({...series, name: `mean of ${group.runs.length} seeds`, tone: 'b', dots: true})));
  } catch (error) {
    if (error.status === undefined) throw error;
  }
}
