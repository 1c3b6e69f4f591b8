// The tab Compare: runs or a study, curves over each other, a table, and a verdict for each pair.

import {encodeId, getJson} from './api.js';
import {createChart, toneOf} from './charts.js';
import {
  create, createEmptyNote, createErrorNotice, createNotices, createSection, createTable, formatCount, formatDuration, formatMetric,
  formatNumber, replaceQuery,
} from './dom.js';

export async function render(container, {query}) {
  const answer = await getJson('api/runs');
  const state = {answer, charts: [], request: 0, selected: new Set(query.getAll('run')), study: query.get('study') ?? ''};
  const result = create('div');
  container.append(create('h1', {}, 'Compare'), createChooser(state, () => load(state, result)), result);
  await load(state, result);
  return () => {
    state.request += 1;
    clear(state);
  };
}

const clear = state => state.charts.splice(0).forEach(chart => chart.destroy());

// What is compared: a study, or runs. Runs of several seeds are chosen together.
function createChooser(state, update) {
  const {runs, studies} = state.answer;
  const groups = new Map();
  for (const run of runs) groups.set(run.group || run.id, [...(groups.get(run.group || run.id) ?? []), run.id]);
  const list = create('div', {class: 'choices'});
  const change = () => {
    replaceQuery({study: state.study});
    const [address, text = ''] = location.hash.split('?');
    const parameters = new URLSearchParams(text);
    parameters.delete('run');
    state.selected.forEach(id => parameters.append('run', id));
    history.replaceState(null, '', parameters.size ? `${address}?${parameters}` : address);
    update();
  };
  const fill = filter => {
    const names = [...groups.keys()].filter(name => name.toLowerCase().includes(filter.toLowerCase()));
    list.replaceChildren(...names.map(name => {
      const ids = groups.get(name);
      const box = create('input', {type: 'checkbox', checked: ids.every(id => state.selected.has(id)), change: event => {
        ids.forEach(id => event.target.checked ? state.selected.add(id) : state.selected.delete(id));
        state.study = '';
        if (select) select.value = '';
        change();
      }});
      return create('label', {class: 'choice'}, box, ` ${name}`, ids.length > 1 && create('span', {class: 'hint'}, `${ids.length} seeds`));
    }));
  };
  const select = studies.length ? create('select', {'aria-label': 'Study', change: event => {
    state.study = event.target.value;
    state.selected.clear();
    fill(search.value);
    change();
  }}, create('option', {value: ''}, 'choose a study'), studies.map(name => create('option', {value: name, selected: name === state.study}, name))) : null;
  const search = create('input', {type: 'search', placeholder: 'Filter runs', 'aria-label': 'Filter runs', input: event => fill(event.target.value)});
  fill('');
  return create('section', {class: 'card panel chooser'}, create('div', {class: 'controls'}, search,
    select && create('label', {}, 'or a study', select)), list);
}

async function load(state, result) {
  const request = ++state.request;
  if (!state.selected.size && !state.study) {
    clear(state);
    result.replaceChildren(createEmptyNote('Choose runs above, or a study.'));
    return;
  }
  const parameters = state.study ? [['study', state.study]] : [...state.selected].map(id => ['run', id]);
  try {
    const comparison = await getJson(`api/compare?${new URLSearchParams(parameters)}`);
    if (request !== state.request) return;
    clear(state);
    result.replaceChildren(...createResult(comparison, state));
    comparison.curves.forEach((curves, i) => state.charts[i].update(curves.series.map((series, j) => ({
      ...series, ...toneOf(j), dots: series.points.length < 12}))));
  } catch (error) {
    if (error.status === undefined) throw error;
    if (request === state.request) result.replaceChildren(createErrorNotice(error));
  }
}

function createResult(comparison, state) {
  const metric = state.answer.metrics[comparison.metric];
  const format = value => formatMetric(metric, value);
  const formatDifference = value => formatMetric(metric && {...metric, unit: ''}, value);  // of percentages: in points
  state.charts.push(...comparison.curves.map(curves => createChart({
    title: curves.title, allowLog: curves.metric === 'loss', metric: state.answer.metrics[curves.metric]})));
  return [
    createVerdicts(comparison),
    createSection(comparison.metric_title, createVariantTable(comparison, format)),
    comparison.pairs.length ? createSection('Differences', createPairTable(comparison, formatDifference)) : null,
    state.charts.length ? createSection('Curves', create('p', {class: 'lead'}, 'Lines are means over seeds. Bands show one standard deviation on both sides.'),
      create('div', {class: 'charts'}, state.charts.map(chart => chart.node))) : null,
    createSettings(comparison),
    createNotices('Notes', comparison.notes),
    create('p', {class: 'lead method'}, comparison.method.join(' ')),
  ].filter(Boolean);
}

function createVerdicts({pairs, variants}) {
  const sets = new Set(variants.map(row => row.eval_set));
  if (!pairs.length) return null;
  return createSection('Verdicts', create('ul', {class: 'card said'}, pairs.map(pair => create('li', {},
    pair.is_different && create('span', {class: 'pill'}, 'different'), ' ',
    create('b', {}, `${pair.first} and ${pair.second}${sets.size > 1 ? ` on ${pair.eval_set}` : ''}`), `: ${pair.verdict}`))));
}

function createVariantTable({variants}, format) {
  const columns = [{title: 'Variant'}, {title: 'Set'}, {title: 'Runs', numeric: true}, {title: 'Mean', numeric: true}, {title: 'Deviation', numeric: true},
    {title: 'Parameters', numeric: true}, {title: 'Time', numeric: true}];
  return createTable(columns, variants.map(row => [
    row.runs.length === 1 ? create('a', {href: `#/run/${encodeId(row.runs[0])}`, class: 'run-name'}, row.name) : row.name,
    row.eval_set, formatCount(row.n), row.text, row.deviation === null ? '–' : format(row.deviation),
    formatCount(row.parameters ?? NaN), formatDuration(row.seconds ?? NaN)]));
}

function createPairTable({pairs}, format) {
  const signed = value => value === null ? '–' : `${value > 0 ? '+' : ''}${format(value)}`.replace('-', '−');
  const columns = [{title: 'Pair'}, {title: 'Set'}, {title: 'Seeds', numeric: true}, {title: 'Difference', numeric: true}, {title: '95 % interval', numeric: true},
    {title: 'p', numeric: true}, {title: 'Corrected p', numeric: true}];
  return createTable(columns, pairs.map(pair => [
    `${pair.second} − ${pair.first}`, pair.eval_set, formatCount(pair.n), signed(pair.difference),
    pair.low === null || pair.high === null ? '–' : `${signed(pair.low)} to ${signed(pair.high)}`,
    pair.low === null ? '–' : formatNumber(pair.p), pair.low === null ? '–' : formatNumber(pair.corrected_p)]));
}

function createSettings({settings, variants}) {
  const names = [...new Set(variants.map(row => row.name))];
  if (names.length < 2) return null;
  if (!settings.length) return createSection('Settings', createEmptyNote('The variants do not differ in any setting.'));
  return createSection('Settings that differ', createTable([{title: 'Setting'}, ...names.map(title => ({title, numeric: true}))],
    settings.map(row => [row.name, ...row.values])));
}
