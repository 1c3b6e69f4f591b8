// The data of a run to train: the task, a file that is dropped or chosen, its columns, labels and problems.

import {ApiError, postJson, request} from './api.js';
import {create, createButton, createEmptyNote, createErrorNotice, createNotices, createSection, createTable, formatBytes, formatCount} from './dom.js';

const TASKS = {
  classify: 'A table with a text and a label in each row: .csv, .tsv, .jsonl, .parquet or .arrow, also with .gz or .zst added.',
  generate: 'A text (.txt), or a table with a text in each row.',
  translate: 'A table with a sentence and its translation in each row, or two text files with matching lines.',
};
const ROLES = {classify: ['text', 'label'], generate: ['text'], translate: ['source', 'target']};

// Create the section: {node}. `onChange` is called when the task, the files or the columns change.
export function createDataSection(form, training, onChange) {
  const picker = create('div'), report = create('div', {'aria-live': 'polite'});
  const radios = Object.keys(TASKS).map(task => create('input', {type: 'radio', name: 'task', value: task, change: () => {
    form.isTaskChosen = true;
    selectTask(task);
  }}));
  const description = create('p', {class: 'hint-line'});
  let visit = 0;

  const selectTask = task => {
    if (task !== form.task) form.columns = {};
    form.task = task;
    drawPicker();
    inspect();
  };

  const drawPicker = () => {
    const isPair = form.isPair && form.task === 'translate';
    for (const radio of radios) radio.checked = radio.value === form.task;
    description.textContent = TASKS[form.task];
    const builtin = training.tasks[form.task];
    picker.replaceChildren(
      create('div', {class: 'drop-zones'}, (isPair ? ['source', 'target'] : ['data']).map(slot => createDropZone(slot, form.files[slot], upload))),
      create('div', {class: 'controls'},
        createButton(`Use ${builtin}`, () => { form.isPair = false; setFile('data', {id: builtin, name: builtin}); inspect(); }),
        form.task === 'translate' && create('label', {}, create('input', {type: 'checkbox', checked: form.isPair,
          change: event => { form.isPair = event.target.checked; drawPicker(); inspect(); }}), 'Two files with matching lines')));
  };
  const setFile = (slot, file) => {
    form.files[slot] = file;
    form.columns = {};
    drawPicker();
  };

  // Two files at once are a source and a target.
  async function upload(slot, files) {
    const current = ++visit;
    const slots = files.length === 2 ? ['source', 'target'] : [slot];
    if (files.length === 2) { form.isPair = true; form.isTaskChosen = true; form.task = 'translate'; }
    try {
      for (const [i, name] of slots.entries()) {
        const file = files[i];
        if (file.size > training.max_upload) {
          throw new ApiError(413, `${file.name} has ${formatBytes(file.size)}; the limit of this server is ${formatBytes(training.max_upload)}.`);
        }
        report.replaceChildren(createEmptyNote(`Uploading and reading ${file.name}…`));
        const answer = await (await request(`api/uploads?name=${encodeURIComponent(file.name)}`, {method: 'POST', body: file})).json();
        if (current !== visit) return;
        setFile(name, {id: `upload:${answer.id}`, name: answer.name, bytes: answer.bytes});
        if (name === 'data' && answer.task && !form.isTaskChosen) form.task = answer.task;
        drawPicker();
      }
    } catch (error) {
      if (error.status === undefined) throw error;
      if (current === visit) report.replaceChildren(createErrorNotice(error));
      return;
    }
    inspect();
  }

  async function inspect() {
    const current = ++visit, {data, source, target} = form.files;
    const isPair = form.isPair && form.task === 'translate';
    onChange();
    if (isPair ? !(source && target) : !data) { report.replaceChildren(); return; }
    const files = isPair ? {source: source.id, target: target.id} : {data: data.id};
    report.replaceChildren(createEmptyNote('Reading the data…'));
    try {
      const inspection = await postJson('api/inspect', {task: form.task, ...files, settings: form.columns});
      if (current === visit) showInspection(inspection);
    } catch (error) {
      if (error.status === undefined) throw error;
      if (current === visit) report.replaceChildren(createErrorNotice(error));
    }
  }

  function showInspection(inspection) {
    const facts = [`${formatCount(inspection.n_rows)} rows`, `${formatCount(inspection.n_chars)} characters`,
      inspection.n_labels && `${formatCount(inspection.n_labels)} labels`, !inspection.is_complete && 'counted at the beginning of a long file'];
    const titles = inspection.columns.map(({name, role}) => ({title: role && role !== name ? `${name} (${role})` : name}));
    report.replaceChildren(
      create('p', {class: 'facts'}, facts.filter(Boolean).join(' · ')),
      ...[createColumnSelects(inspection), createTable(titles, inspection.rows.map(row => titles.map((_, i) => row[i] ?? '')), {caption: 'First rows'}),
        createLabelCounts(inspection), createAudit(inspection)].filter(Boolean));
  }

  // A select for each role, if the file has several columns.
  function createColumnSelects({columns}) {
    const choices = columns.filter(column => column.selector);
    if (choices.length < 2) return null;
    return create('div', {class: 'controls'}, ROLES[form.task].map(role => create('label', {}, `Column of the ${role}`,
      create('select', {dataset: {role}, change: event => { form.columns[`data.${role}_column`] = event.target.value; inspect(); }},
        choices.map(column => create('option', {value: column.selector, selected: column.role === role}, column.name))))));
  }

  drawPicker();
  if (Object.keys(form.files).length) inspect();
  return {node: createSection('Data', create('div', {class: 'card panel'},
    create('fieldset', {class: 'tasks'}, create('legend', {}, 'Task'),
      create('div', {class: 'controls'}, radios.map(radio => create('label', {class: 'task'}, radio, radio.value)))),
    description, picker), report)};
}

// A box that takes a file: dropped on it, or chosen with the file input, which the keyboard reaches.
function createDropZone(slot, file, onFiles) {
  const title = {data: 'Data file', source: 'Source sentences', target: 'Their translations'}[slot];
  const input = create('input', {type: 'file', class: 'hidden', multiple: slot === 'data', dataset: {slot},
    change: () => { if (input.files.length) onFiles(slot, [...input.files].slice(0, 2)); }});
  const zone = create('label', {class: 'drop-zone'}, create('b', {}, file ? file.name : title),
    create('span', {}, file ? (file.bytes === undefined ? 'built-in set' : formatBytes(file.bytes)) : 'Drop a file here, or choose one.'), create('span', {class: 'like-button'}, file ? 'Choose another file' : 'Choose a file'), input);
  const highlight = isOver => event => { event.preventDefault(); zone.classList.toggle('over', isOver); };
  zone.addEventListener('dragover', highlight(true));
  zone.addEventListener('dragleave', highlight(false));
  zone.addEventListener('drop', event => {
    highlight(false)(event);
    if (event.dataTransfer.files.length) onFiles(slot, [...event.dataTransfer.files].slice(0, 2));
  });
  return zone;
}

function createLabelCounts({labels, n_rows: total, n_labels: count}) {
  if (!labels.length) return null;
  return create('div', {class: 'card panel label-counts'}, create('h3', {}, 'Labels'),
    create('ul', {}, labels.map(({label, count: n}) => create('li', {}, create('span', {dir: 'auto'}, label),
      create('meter', {min: 0, max: total, value: n, 'aria-label': `share of ${label}`}), create('span', {class: 'num'}, `${formatCount(n)} (${(100 * n / total).toFixed(1)} %)`)))),
    count > labels.length && create('p', {class: 'hint-line'}, `and ${formatCount(count - labels.length)} rarer labels`));
}

function createAudit({findings, n_audited: audited, n_rows: total}) {
  const scope = audited < total ? `The audit read the first ${formatCount(audited)} rows; triform audit reads all.` : '';
  if (findings.length) return createNotices('What the audit found', [...findings, ...(scope ? [scope] : [])], {warning: true});
  return createNotices('Audit', ['No duplicates, empty rows or conflicting labels were found.', ...(scope ? [scope] : [])]);
}
