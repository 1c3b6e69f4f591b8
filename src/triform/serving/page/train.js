// The tab Train: data, preset and settings, what the run costs, and the training jobs.

import {ApiError, encodeId, getJson, postJson} from './api.js';
import {
  create, createEmptyNote, createErrorNotice, createNotices, createSection, createStatCard, formatBytes,
  formatCount, formatDuration,
} from './dom.js';
import {createDataSection} from './train_data.js';
import {createJobList} from './train_jobs.js';

const ESTIMATE_DELAY_MS = 800;
// What the form holds. It stays when another tab is opened.
const form = {
  task: 'classify', isTaskChosen: false, isPair: false, files: {}, columns: {}, preset: '', settings: {}, extra: '', name: '',
};

export async function render(container) {
  const training = await getJson('api/training');
  container.append(create('h1', {}, 'Train'));
  if (!training.can_train) {
    container.append(createEmptyNote('This server does not train: it is read-only, or it has no folder of runs.'));
    return undefined;
  }
  const jobs = createJobList();
  const costs = createCostSection();
  const model = createModelSection(training, () => costs.schedule());
  const data = createDataSection(form, training, () => { model.showTask(); costs.schedule(); });
  container.append(
    create('p', {class: 'lead'}, 'Train a model on your data. The run is an ordinary run folder, and training continues when this page or the server is closed.'),
    data.node, model.node, costs.node, createStartSection(jobs), jobs.node);
  costs.schedule();
  return () => { costs.cancel(); jobs.remove(); };
}

const isReady = () => form.isPair && form.task === 'translate'
  ? Boolean(form.files.source && form.files.target) : Boolean(form.files.data);

// The body of a request to train or to estimate. A line of the further settings is NAME=VALUE.
function createRequest() {
  const settings = {...form.columns};
  for (const [name, value] of Object.entries(form.settings)) if (value.trim()) settings[name] = value.trim();
  for (const line of form.extra.split('\n').filter(text => text.trim())) {
    const [, name, value] = /^([^=]*)=?(.*)$/s.exec(line);
    settings[name.trim()] = value.trim();
  }
  const {data, source, target} = form.files;
  const files = form.isPair && form.task === 'translate' ? {source: source.id, target: target.id} : {data: data.id};
  return {task: form.task, ...files, preset: form.preset, settings};
}

// -- preset and settings

function createModelSection({presets, settings}, onChange) {
  const description = create('p', {class: 'hint-line', id: 'preset-description'});
  const select = create('select', {id: 'preset', 'aria-describedby': 'preset-description', change: () => {
    form.preset = select.value;
    describe();
    onChange();
  }});
  const describe = () => {
    description.textContent = presets.find(preset => preset.name === form.preset)?.description
      ?? 'The size of the model follows from the size of the data.';
  };
  const showTask = () => {
    const fitting = presets.filter(preset => preset.tasks.includes(form.task));
    if (!fitting.some(preset => preset.name === form.preset)) form.preset = '';
    select.replaceChildren(create('option', {value: ''}, 'automatic'),
      ...fitting.map(({name}) => create('option', {value: name, selected: name === form.preset}, name)));
    describe();
  };
  const extra = create('textarea', {id: 'extra', rows: 3, spellcheck: 'false', placeholder: 'train.label_smoothing=0.1',
    input: () => { form.extra = extra.value; onChange(); }});
  extra.value = form.extra;
  showTask();
  const node = createSection('Model and settings',
    create('div', {class: 'card panel'},
      create('div', {class: 'field'}, create('label', {for: 'preset'}, 'Preset'), select, description),
      create('div', {class: 'fields'}, settings.map(setting => createField(setting, onChange))),
      create('details', {open: Boolean(form.extra)}, create('summary', {}, 'Further settings'),
        create('label', {for: 'extra'}, 'One setting on each line, as NAME=VALUE. triform settings lists all of them.'), extra)));
  return {node, showTask};
}

// A setting as its documentation describes it. An empty field keeps the default.
function createField(setting, onChange) {
  const id = `setting-${setting.name}`, hint = `${id}-hint`;
  const save = event => { form.settings[setting.name] = event.target.value; onChange(); };
  const properties = {id, 'aria-describedby': hint, dataset: {setting: setting.name}};
  const input = setting.choices.length
    ? create('select', {...properties, change: save}, create('option', {value: ''}, `default (${setting.default})`),
      setting.choices.map(choice => create('option', {value: choice}, choice)))
    : create('input', {...properties, inputmode: 'decimal', autocomplete: 'off', placeholder: setting.default, input: save});
  input.value = form.settings[setting.name] ?? '';
  const title = [setting.type, setting.automatic].filter(Boolean).join('. ');
  return create('div', {class: 'field'}, create('label', {for: id, title}, create('code', {}, setting.name)), input,
    create('p', {class: 'hint-line', id: hint}, setting.meaning));
}

// -- what the run costs

function createCostSection() {
  const part = create('div', {'aria-live': 'polite'});
  let timer = 0, controller = null;
  const cancel = () => { clearTimeout(timer); controller?.abort(); };
  const estimate = async () => {
    controller = new AbortController();
    const {signal} = controller;
    part.replaceChildren(createEmptyNote('Estimating: the data is read and a few steps are timed…'));
    try {
      showCosts(part, await postJson('api/estimate', createRequest(), {signal}));
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === undefined) throw error;
      part.replaceChildren(createErrorNotice(error, estimate));
    }
  };
  const schedule = () => {
    cancel();
    if (!isReady()) { part.replaceChildren(createEmptyNote('Choose data first.')); return; }
    part.replaceChildren(createEmptyNote('Estimating…'));
    timer = setTimeout(estimate, ESTIMATE_DELAY_MS);
  };
  return {node: createSection('What it costs', part), schedule, cancel};
}

function showCosts(part, costs) {
  const texts = isWarning => costs.notices.filter(({level}) => (level === 'warning') === isWarning).map(({text}) => text);
  const fits = costs.memory_bytes <= costs.available_bytes;
  part.replaceChildren(create('dl', {class: 'tiles costs'},
    createStatCard('Estimated time', formatDuration(costs.seconds), `on ${costs.device}, from a few timed steps`),
    createStatCard('Steps', formatCount(costs.steps), `${formatCount(costs.train_examples)} training examples`),
    createStatCard('Parameters', formatCount(costs.parameters), `vocabulary of ${formatCount(costs.vocab_size)}`),
    createStatCard('Estimated memory', formatBytes(costs.memory_bytes),
      `${formatBytes(costs.available_bytes)} are free${fits ? '' : ', which is too little'}`)),
  ...[createNotices('Warnings', texts(true), {warning: true}), createNotices('About the data', texts(false))].filter(Boolean));
}

// -- start

function createStartSection(jobs) {
  const message = create('div', {'aria-live': 'polite'});
  const name = create('input', {id: 'run-name', autocomplete: 'off', placeholder: 'automatic', maxlength: 80,
    input: () => { form.name = name.value; }});
  name.value = form.name;
  const start = async event => {
    event.preventDefault();
    if (!isReady()) { message.replaceChildren(createErrorNotice(new Error('Choose data first.'))); return; }
    button.disabled = true;
    message.replaceChildren(createEmptyNote('Starting: the process loads the data and builds the model…'));
    try {
      const {id} = await postJson('api/jobs', {...createRequest(), name: form.name.trim()});
      const job = await jobs.waitForStart(id);
      if (job === null) return;  // another tab was opened
      if (!job.has_run) throw new ApiError(0, job.error || 'The job was stopped before it had a run folder.');
      form.name = '';
      location.hash = `#/run/${encodeId(id)}`;
    } catch (error) {
      if (error.status === undefined) throw error;
      message.replaceChildren(createErrorNotice(error));
    } finally {
      button.disabled = false;
    }
  };
  const button = create('button', {type: 'submit', class: 'primary'}, 'Start training');
  return createSection('Start', create('form', {class: 'controls', submit: start},
    create('label', {for: 'run-name'}, 'Name of the run'), name, button), message);
}
