// The choice of a run, which the tabs Playground and Attention share.

import {encodeId, getJson} from './api.js';
import {create, createButton, createEmptyNote, replaceQuery} from './dom.js';

// Return {runs, label, current, onChange} with a list of all runs that are not damaged. `id` is chosen if there is such a run.
// Without runs, a note is added to `container` and the result is null.
export async function createRunSelect(container, id) {
  const {runs} = await getJson('api/runs');
  const usable = runs.filter(run => run.task && run.state !== 'damaged').sort((a, b) => a.id < b.id ? -1 : 1);
  if (!usable.length) {
    container.append(createEmptyNote('There are no runs yet. Train one in the tab Train.'));
    return null;
  }
  const select = create('select', {id: 'run-select'},
    ...usable.map(run => create('option', {value: run.id}, `${run.id} (${run.task})`)));
  const current = () => usable.find(run => run.id === select.value);
  select.value = usable.some(run => run.id === id) ? id : newest(usable).id;
  const listeners = [];
  select.addEventListener('change', () => {
    replaceQuery({run: select.value});
    for (const listener of listeners) listener(current());
  });
  return {runs: usable, label: create('label', {class: 'run-field'}, 'Run ', select), current, onChange: listener => listeners.push(listener)};
}

const newest = runs => runs.reduce((best, run) => (run.updated ?? '') > (best.updated ?? '') ? run : best);

// A button that fills in texts of a run's validation data, one after the other. Runs of several seeds record no samples,
// so their texts come from predictions.
export function createExampleButton(currentRun, setText) {
  let samples = [], next = 0, id = null;
  const button = createButton('Example', async () => {
    const run = currentRun();
    if (run.id !== id) {
      const address = `api/runs/${encodeId(run.id)}`;
      const inputs = await readInputs(address).then(texts => texts.length ? texts : readInputs(`${address}/predictions`));
      [samples, next, id] = [[...new Set(inputs)], 0, run.id];
    }
    button.textContent = samples.length ? 'Example' : 'No examples';
    if (samples.length) setText(samples[next++ % samples.length]);
  }, {id: 'example', title: 'Fill in a text that the run was validated with'});
  return button;
}

const readInputs = address => getJson(address).then(
  answer => answer.samples.map(sample => sample.input).filter(input => input.trim()),
  error => { if (error.status === undefined) throw error; return []; });

// Call an async function while `button` is disabled, and show an error of the server in `errors`.
export async function withButton(button, errors, work) {
  button.disabled = true;
  errors.replaceChildren();
  try {
    await work();
  } catch (error) {
    if (error.name === 'AbortError') return;
    if (error.status === undefined) throw error;
    showError(errors, error);
  } finally {
    button.disabled = false;
  }
}
export function showError(errors, error) {
  errors.replaceChildren(create('p', {class: 'notices warnings', role: 'alert'}, error.message));
}

// Redraw colours that are not in the style sheet when the reader changes between the light and the dark scheme.
export function onSchemeChange(redraw) {
  const scheme = matchMedia('(prefers-color-scheme: dark)');
  scheme.addEventListener('change', redraw);
  return () => scheme.removeEventListener('change', redraw);
}
