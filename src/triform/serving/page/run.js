// The tab of one run: live curves, samples, settings, notices, predictions on validation rows, and files.

import {ApiError, deleteJson, encodeId, getJson, postJson, streamEvents} from './api.js';
import {createChart, smooth, toneOf} from './charts.js';
import {
  create, createButton, createEmptyNote, createErrorNotice, createNotices, createSection, createStatCard, createStatePill,
  createTable, formatBytes, formatCount, formatDuration, formatMetric, formatNumber, formatTime, openDialog, showConnection,
} from './dom.js';

const REDRAW_MS = 400;
const RECONNECT_MS = 2000;
const MAX_EVENTS = 8000;  // of a run that trains for long; the server thins more than that
const JOB_POLL_MS = 500;
const CHART_METRICS = ['accuracy', 'f1', 'perplexity', 'bits_per_byte', 'bleu', 'chrf', 'exact_match', 'token_accuracy'];
const RATES = {lr: 'Learning rate', tokens_per_s: 'Tokens per second', grad_norm: 'Gradient norm'};

export async function render(container, {path: id}) {
  const url = `api/runs/${encodeId(id)}`;
  const controller = new AbortController(), {signal} = controller;
  const view = {id, url, maxEvents: MAX_EVENTS, details: await getJson(url), events: [], charts: new Map(), samples: new Map(), predictions: new Map()};
  const parts = Object.fromEntries(['head', 'tiles', 'notices', 'curves', 'tests', 'samples', 'predictions', 'settings', 'files']
    .map(name => [name, create('div', {class: `part-${name}`})]));
  container.append(...Object.values(parts));

  const drawDetails = () => {
    drawHead(parts.head, view);
    drawNotices(parts.notices, view);
    drawTests(parts.tests, view);
    drawSettings(parts.settings, view);
    drawFiles(parts.files, view);
  };
  const drawEvents = () => {
    drawTiles(parts.tiles, view);
    drawCurves(parts.curves, view);
    drawSamples(parts.samples, view);
  };
  async function reload() {
    view.details = await getJson(url, {signal});
    drawDetails();
  }
  let timer = 0;
  const scheduleDraw = () => { timer ||= setTimeout(() => { timer = 0; drawEvents(); }, REDRAW_MS); };

  drawDetails();
  drawEvents();
  drawPredictions(parts.predictions, view);
  followRun(view, signal, {
    onEvents: scheduleDraw,
    onBest: () => { if (view.showsPredictions) drawPredictions(parts.predictions, view); },
    onRun: reload,
    onGone: error => parts.head.prepend(createErrorNotice(error)),
  });
  return () => {
    controller.abort();
    clearTimeout(timer);
    view.charts.forEach(chart => chart.destroy());
  };
}

// Read the stream of the run's metrics, and connect again when the connection ends.
async function followRun(view, signal, {onEvents, onBest, onRun, onGone}) {
  let state = view.details.run.state;
  while (!signal.aborted) {
    try {
      for await (const {event, data} of streamEvents(`${view.url}/metrics`, {signal})) {
        const content = JSON.parse(data);
        showConnection(true);
        if (event === 'history') view.events = content;
        if (event === 'event') view.events.push(content);
        if (view.events.length > view.maxEvents) {
          view.events = (await getJson(`${view.url}/metrics`, {signal})).events;
          view.maxEvents = Math.max(MAX_EVENTS, 2 * view.events.length);
        }
        if (event === 'event' && content.event === 'best') onBest();
        if (event === 'run') {
          view.details.run = content;
          if (content.state !== state) { state = content.state; await onRun(); }
        }
        if (event === 'error') { onGone(new Error(content.error)); return; }
        onEvents();
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.status > 0) { onGone(error); return; }
    }
    if (signal.aborted) return;
    showConnection(false, new Error('The server does not answer.'));
    await new Promise(resolve => setTimeout(resolve, RECONNECT_MS));
  }
}

// -- the head of the page

function drawHead(part, view) {
  const {run, path} = view.details;
  const buttons = create('span', {class: 'buttons'});
  if (view.details.can_stop) buttons.append(createButton('Stop', event => stopRun(event.target, part, view)));
  if (view.details.can_resume) buttons.append(createButton('Resume', event => resumeRun(event.target, part, view)));
  if (view.details.can_delete) buttons.append(createButton('Delete', () => deleteRun(part, view), {class: 'danger'}));
  const trail = create('p', {class: 'eyebrow'}, create('a', {href: '#/runs'}, 'Runs'), run.group && ` / ${run.group}`);
  const facts = [run.task, run.kind, run.data, run.seed === null ? '' : `seed ${run.seed}`, run.started && `started ${formatTime(run.started)}`];
  const links = ['finished', 'stopped', 'training'].includes(run.state) && create('p', {class: 'links'},
    create('a', {href: `#/playground?run=${encodeURIComponent(run.id)}`}, 'Try it in the playground'), ' · ',
    create('a', {href: `#/attention?run=${encodeURIComponent(run.id)}`}, 'Look at its attention'), ' · ',
    create('a', {href: `#/compare?run=${encodeURIComponent(run.id)}`}, 'Compare it'));
  part.replaceChildren(create('header', {}, trail,
    create('h1', {}, run.name, ' ', createStatePill(run.state), buttons),
    create('p', {class: 'lead'}, facts.filter(Boolean).join(' · ')), create('p', {class: 'path'}, create('code', {}, path)), links || null));
  if (run.error) part.append(createNotices('What is wrong', [run.error], {warning: true}));
}

// The stream of metrics tells when the run has stopped or trains again, and the head is drawn anew then.
async function stopRun(button, part, view) {
  await changeRun(button, part, 'Stopping…', () => postJson(`api/jobs/${encodeId(view.id)}/stop`));
}

async function resumeRun(button, part, view) {
  await changeRun(button, part, 'Starting…', async () => {
    let job = await postJson(`api/jobs/${encodeId(view.id)}/resume`);
    while (job?.state === 'starting') {
      await new Promise(resolve => setTimeout(resolve, JOB_POLL_MS));
      job = (await getJson('api/jobs')).jobs.find(({id}) => id === view.id);
    }
    if (job?.state === 'failed') throw new ApiError(0, job.error);
  });
}

async function changeRun(button, part, label, change) {
  const oldLabel = button.textContent;
  button.disabled = true;
  button.textContent = label;
  try {
    await change();
  } catch (error) {
    if (error.status === undefined) throw error;
    button.disabled = false;
    button.textContent = oldLabel;
    part.append(createErrorNotice(error));
  }
}

async function deleteRun(part, view) {
  const {run} = view.details;
  const accepted = await openDialog({
    title: `Delete ${run.id}?`,
    content: [create('p', {}, 'Its weights, checkpoints, metrics and report are removed from the disk. This cannot be undone.')],
    action: 'Delete', danger: true,
  });
  if (!accepted) return;
  try {
    await deleteJson(view.url);
    location.hash = '#/runs';
  } catch (error) {
    part.append(createErrorNotice(error));
  }
}

function drawTiles(part, view) {
  const {details: {run, metrics}, events} = view;
  const start = events.find(event => event.event === 'start') ?? {};
  const train = events.filter(event => event.event === 'train');
  const speeds = train.map(event => event.tokens_per_s).filter(Number.isFinite).sort((a, b) => a - b);
  const best = bestPoint(view), isTraining = run.state === 'training';
  const progress = isTraining && run.max_steps
    ? create('progress', {max: run.max_steps, value: run.step ?? 0, 'aria-label': 'progress'}) : null;
  part.replaceChildren(create('dl', {class: 'tiles'},
    createStatCard(`Best ${run.metric ? run.metric.title.toLowerCase().replace('bleu', 'BLEU') : 'metric'}`,
      best ? formatMetric(metrics[run.metric?.name], best[1]) : run.metric?.text ?? '–', best ? `at step ${formatCount(best[0])}` : 'not validated yet'),
    createStatCard('Steps', formatCount(run.step ?? 0), run.max_steps ? `of ${formatCount(run.max_steps)}${remaining(run, train)}` : '', progress),
    createStatCard('Parameters', formatCount(run.parameters ?? NaN), start.vocab_size ? `vocabulary of ${formatCount(start.vocab_size)}` : ''),
    createStatCard('Time', formatDuration(run.seconds ?? NaN), isTraining ? 'so far' : 'training'),
    createStatCard('Tokens per second', speeds.length ? formatNumber(speeds[(speeds.length - 1) >> 1]) : '–', 'median'),
    createStatCard('Device', start.device ?? '–', start.precision ?? '')));
}

function remaining(run, train) {
  const last = train.at(-1);
  if (run.state !== 'training' || !last?.seconds || !run.step) return '';
  return `, about ${formatDuration(last.seconds / run.step * (run.max_steps - run.step))} left`;
}

function bestPoint({events}) {
  const end = events.findLast(event => event.event === 'end');
  if (Number.isFinite(end?.best) && Number.isFinite(end?.best_step)) return [end.best_step, end.best];
  const best = events.findLast(event => event.event === 'best');
  return best && Number.isFinite(best.value) ? [best.step, best.value] : null;
}

function drawNotices(part, view) {
  const texts = isWarning => view.details.notices.filter(notice => (notice.level === 'warning') === isWarning).map(notice => notice.text);
  part.replaceChildren(...[createNotices('Warnings', texts(true), {warning: true}), createNotices('About the data and this run', texts(false))]
    .filter(Boolean));
}

// -- curves

const pointsOf = (events, key) => events.filter(event => Number.isFinite(event.step) && Number.isFinite(event[key]))
  .map(event => [event.step, event[key]]);

// The curves of a metric: one for the validation set and one for each set that is evaluated with it.
function evaluationCurves({events}, key) {
  const name = events.find(event => event.event === 'start')?.valid_name ?? 'valid';
  const sets = [...new Set(events.filter(event => event.event === 'monitor').map(event => event.set))];
  const named = [[name, events.filter(event => event.event === 'valid')],
    ...sets.map(set => [set === 'train' ? 'training examples' : set, events.filter(event => event.event === 'monitor' && event.set === set)])];
  return named.map(([label, list], i) => ({name: label, points: pointsOf(list, key), ...toneOf(i + 1), dots: true}));
}

function drawCurves(part, view) {
  const {details: {run, metrics}, events} = view;
  if (!part.children.length) {
    part.append(createSection('Curves', createEmptyNote('There are no curves before the first logged step.'),
      create('div', {class: 'charts large'}), create('div', {class: 'charts thirds'})));
  }
  const train = events.filter(event => event.event === 'train');
  part.querySelector('.empty').hidden = train.length > 0 || events.some(event => event.event === 'valid');
  const raw = pointsOf(train, 'loss'), metric = run.metric?.name;
  drawChart(view, part, 'Loss', {allowLog: true}, [
    {name: 'train, raw', points: raw, faint: true}, {name: 'train', points: smooth(raw)}, ...evaluationCurves(view, 'loss')]);
  const drawMetric = (name, options) => drawChart(view, part, metrics[name]?.title ?? name, {
    ...options, metric: metrics[name], allowLog: !(metrics[name]?.higher_is_better ?? true),
  }, evaluationCurves(view, name));
  if (metric && metric !== 'loss') drawMetric(metric, {});
  for (const name of CHART_METRICS) if (name !== metric) drawMetric(name, {small: true});
  for (const [key, title] of Object.entries(RATES)) {
    drawChart(view, part, title, {small: true, allowLog: key === 'grad_norm'}, [{name: 'train', points: pointsOf(train, key)}]);
  }
}

function drawChart(view, part, title, options, curves) {
  if (!view.charts.has(title)) {
    if (!curves.some(curve => curve.points.length)) return;
    const chart = createChart({title, ...options});
    view.charts.set(title, chart);
    part.querySelector(options.small ? '.thirds' : '.large').append(chart.node);
  }
  view.charts.get(title).update(curves);
}

// -- tables

function drawTests(part, view) {
  const {tests} = view.details, names = [...new Set(tests.flatMap(test => test.metrics.map(metric => metric.title)))];
  part.replaceChildren(...(tests.length ? [createSection('Test metrics', createTable(
    [{title: 'Data'}, ...names.map(title => ({title, numeric: true}))],
    tests.map(test => [test.name, ...names.map(name => test.metrics.find(metric => metric.title === name)?.text ?? '–')])))] : []));
}

function createSampleTable(samples) {
  const keys = ['input', 'output', 'expected'].filter(key => samples.some(sample => typeof sample[key] === 'string'));
  const rows = samples.map(sample => create('tr', {class: sample.expected !== null && sample.expected !== undefined && sample.output !== sample.expected ? 'miss' : ''},
    keys.map(key => create('td', {class: 'text', dir: 'auto'}, create('div', {}, sample[key] || create('i', {class: 'empty'}, '(empty)'))))));
  return create('div', {class: 'card wide'}, create('table', {}, create('thead', {}, create('tr', {},
    keys.map(key => create('th', {scope: 'col'}, key[0].toUpperCase() + key.slice(1))))), create('tbody', {}, rows)));
}

// Samples by the step of the weights that made them: those that the run recorded, and those made on this page.
function drawSamples(part, view) {
  for (const sample of view.events.filter(event => event.event === 'sample')) {
    const list = view.samples.get(sample.step) ?? [];
    if (!list.some(known => known.input === sample.input && known.output === sample.output)) list.push(sample);
    view.samples.set(sample.step, list);
  }
  const steps = [...view.samples.keys()].sort((a, b) => a - b);
  const signature = JSON.stringify([...view.samples]);
  if (!steps.length || part.dataset.signature === signature) return;
  part.dataset.signature = signature;
  const show = step => part.querySelector('.wide').replaceWith(createSampleTable(view.samples.get(step)));
  const select = create('select', {'aria-label': 'Step of the samples', change: event => show(Number(event.target.value))},
    steps.map(step => create('option', {value: step, selected: step === steps.at(-1)}, `step ${formatCount(step)}`)));
  part.replaceChildren(createSection('Samples', create('div', {class: 'controls'}, create('label', {}, 'Best weights at', select)),
    createSampleTable(view.samples.get(steps.at(-1)))));
}

function drawSettings(part, view) {
  const {settings, settings_error: problem, run} = view.details;
  if (problem) { part.replaceChildren(createSection('Settings', createNotices('The settings cannot be read', [problem], {warning: true}))); return; }
  const isAll = part.dataset.all === 'yes';
  const shown = settings.filter(setting => isAll || !setting.is_default || setting.source !== 'default');
  const groups = new Map();
  for (const setting of shown) {
    const [, group, name] = /^(?:(.*)\.)?([^.]+)$/.exec(setting.name);
    groups.set(group ?? 'general', [...(groups.get(group ?? 'general') ?? []), {...setting, name}]);
  }
  const box = create('input', {type: 'checkbox', checked: isAll, change: event => { part.dataset.all = event.target.checked ? 'yes' : ''; drawSettings(part, view); }});
  part.replaceChildren(createSection('Settings',
    create('div', {class: 'controls'}, create('label', {}, box, 'Show settings with default values too')),
    create('div', {class: 'groups'}, [...groups].map(([name, list]) => create('div', {class: 'card group'}, create('h3', {}, name),
      create('table', {}, create('tbody', {}, list.map(setting => create('tr', {dataset: {setting: setting.name}},
        create('th', {scope: 'row'}, setting.name),
        create('td', {title: `from: ${setting.source}`}, setting.value, ' ', create('span', {class: 'hint'}, setting.source))))))))),
    create('p', {}, 'To repeat this run, use this command in its folder:'),
    create('pre', {class: 'card'}, create('code', {}, `triform train ${run.task} --config config.toml`))));
}

function drawFiles(part, view) {
  const {files} = view.details;
  part.replaceChildren(createSection('Files', createTable([{title: 'File'}, {title: 'Size', numeric: true}],
    files.map(file => [file.path, formatBytes(file.bytes)]))));
}

// -- predictions

async function drawPredictions(part, view) {
  const {run} = view.details;
  if (run.state === 'damaged' || run.state === 'failed') return;
  const what = 'Where the model is wrong';
  if (!view.showsPredictions) {
    part.replaceChildren(createSection(what, create('p', {class: 'lead'}, 'Computed on rows of the validation data, with the best weights so far. While the run trains, they are computed again for each new best.'),
      createButton('Compute', () => { view.showsPredictions = true; drawPredictions(part, view); })));
    return;
  }
  const button = part.querySelector('button');
  if (button) { button.disabled = true; button.textContent = 'Computing…'; }
  try {
    const events = view.events.length ? view.events : (await getJson(`${view.url}/metrics`)).events;  // the stream may be late
    const step = bestPoint({events})?.[0] ?? run.step ?? 0;
    view.predictions.set(step, await getJson(`${view.url}/predictions`));
    const result = create('div');
    const show = chosen => result.replaceChildren(...createPredictions(view.predictions.get(chosen)));
    const select = create('select', {'aria-label': 'Step of the weights', change: event => show(Number(event.target.value))},
      [...view.predictions.keys()].map(key => create('option', {value: key, selected: key === step}, `step ${formatCount(key)}`)));
    show(step);
    part.replaceChildren(createSection(what, create('div', {class: 'controls'}, create('label', {}, 'Best weights at', select),
      createButton('Compute again', () => drawPredictions(part, view))), result));
  } catch (error) {
    if (error.status === undefined) throw error;
    view.showsPredictions = false;
    part.replaceChildren(createSection(what, createErrorNotice(error, () => { view.showsPredictions = true; drawPredictions(part, view); })));
  }
}

function createPredictions({n_rows, tables, samples}) {
  const lead = create('p', {class: 'lead'}, `${formatCount(n_rows)} ${UNITS[tables[0]?.name] ?? 'rows'} of the validation data`);
  return [lead, ...tables.map(createDetailTable), ...(samples.length ? [create('h3', {class: 'spaced'}, 'Examples'), createSampleTable(samples)] : [])];
}

const UNITS = {context: 'tokens', worst: 'pairs'};

// A table of the details of an evaluation. A cell of the confusion matrix is as dark as its share of its row.
function createDetailTable({name, title, columns, kinds, rows, shares, note}) {
  const head = create('tr', {}, columns.map((column, j) => create('th', {scope: 'col', class: kinds[j] === 'number' ? 'num' : ''}, column)));
  const createCell = (text, i, j) => {
    if (kinds[j] === 'text') return create('td', {class: 'text', dir: 'auto'}, create('div', {}, text || create('i', {class: 'empty'}, '(empty)')));
    if (j === 0 && kinds[j] === 'label') return create('th', {scope: 'row', dir: 'auto'}, text);
    const cell = create('td', {class: kinds[j] === 'number' ? 'num' : '', dir: 'auto'}, text);
    if (shares.length && j) {
      cell.classList.add('shade', i === j - 1 ? 'hit' : 'error');
      cell.style.setProperty('--share', shares[i][j - 1]);
      cell.setAttribute('aria-label', `${text} of ${rows[i][0]} predicted as ${columns[j]}`);
    }
    return cell;
  };
  const body = rows.map((cells, i) => create('tr', {}, cells.map((text, j) => createCell(text, i, j))));
  return create('div', {class: `detail ${name}`}, create('h3', {}, title),
    rows.length ? create('div', {class: 'card wide'}, create('table', {}, create('thead', {}, head), create('tbody', {}, body))) : null,
    note ? create('p', {class: 'lead'}, note) : null);
}
