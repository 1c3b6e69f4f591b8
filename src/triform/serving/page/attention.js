// The tab Attention: the maps of a run for any text, also while the run trains.

import {poll, postJson} from './api.js';
import {createAttentionView} from './attention_view.js';
import {openAttention} from './attention_source.js';
import {create, createButton, createNotices, formatCount, replaceQuery, showConnection} from './dom.js';
import {createExampleButton, createRunSelect, onSchemeChange, showError, withButton} from './run_select.js';

const POLL_SECONDS = 2;
const TARGETS = {
  generate: {title: 'Continuation', hint: 'optional'},
  translate: {title: 'Translation', hint: 'optional; the default is the translation of the model'},
};

export async function render(container, {query}) {
  container.append(create('h1', {}, 'Attention'));
  const choice = await createRunSelect(container, query.get('run'));
  if (!choice) return undefined;
  const text = create('textarea', {id: 'attention-text', rows: 3, dir: 'auto', required: true, placeholder: 'Type or paste a text.'});
  const target = create('input', {id: 'attention-target', type: 'text'});
  const targetLabel = create('label', {for: 'attention-target'});
  const checkpoint = create('select', {id: 'checkpoint-select'},
    create('option', {value: 'best'}, 'best'), create('option', {value: 'latest'}, 'latest checkpoint'));
  const isLive = create('input', {type: 'checkbox', id: 'follow'});
  const live = create('label', {}, isLive, 'Follow training');
  const show = create('button', {type: 'submit', class: 'primary'}, 'Show attention');
  const errors = create('div'), status = create('p', {class: 'lead', id: 'attention-status', role: 'status'}), notes = create('div');
  const area = create('div', {class: 'attention-view'});
  text.value = query.get('text') ?? '';
  target.value = query.get('target') ?? '';
  checkpoint.value = query.get('weights') === 'latest' ? 'latest' : 'best';

  let view = null, request = null, selection = {}, controller = new AbortController(), shownStep = null;
  const onTask = () => {
    const field = TARGETS[choice.current().task];
    target.hidden = targetLabel.hidden = !field;
    targetLabel.textContent = field ? `${field.title} (${field.hint})` : '';
    live.hidden = refresh.hidden = checkpoint.value !== 'latest';
  };
  const open = () => withButton(show, errors, async () => {
    controller.abort();
    controller = new AbortController();
    const run = choice.current();
    request = {model: run.id, text: text.value, checkpoint: checkpoint.value,
      target: TARGETS[run.task] ? target.value : ''};
    replaceQuery({run: run.id, text: inAddress(text.value), target: inAddress(request.target),
      weights: checkpoint.value === 'latest' ? 'latest' : ''});
    status.textContent = 'The model reads the text.';
    const handlers = {onError: error => showError(errors, error), onNewStep: open, signal: controller.signal};
    const source = await openAttention(request, handlers).catch(error => {
      if (error.name !== 'AbortError') status.textContent = '';
      throw error;
    });
    const {opened} = source;
    shownStep = opened.step;
    source.onShown = chosen => { selection = chosen; };
    status.textContent = describe(opened, source.maps);
    notes.replaceChildren(...[createNotices('Notes', opened.notes)].filter(Boolean));
    view?.remove();
    area.replaceChildren();
    const isSameShape = selection.map < source.maps.length;
    view = createAttentionView(area, source, isSameShape ? selection : {});
  });
  const example = createExampleButton(() => choice.current(), value => { text.value = value; });
  const refresh = createButton('Refresh', open, {id: 'refresh'});
  choice.onChange(() => { selection = {}; onTask(); if (text.value.trim()) open(); });
  checkpoint.addEventListener('change', () => { onTask(); if (text.value.trim()) open(); });
  const form = create('form', {class: 'card panel', submit: event => { event.preventDefault(); open(); }},
    create('div', {class: 'controls'}, choice.label, create('label', {}, 'Weights ', checkpoint), live, refresh),
    create('label', {for: 'attention-text'}, 'Text'), text, targetLabel, target,
    create('div', {class: 'buttons'}, show, example));
  text.addEventListener('keydown', event => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey) && !show.disabled) form.requestSubmit();
  });
  container.append(form, errors, status, notes, area);
  onTask();
  if (text.value.trim()) open();
  // While a run trains, its maps are shown again when there is a new checkpoint.
  const stopPolling = poll(async signal => {
    if (!isLive.checked || live.hidden || show.disabled || !request) return;
    const {step} = await postJson('api/attention', {...request, weights: false, summary: false}, {signal});
    if (step !== shownStep) await open();
  }, POLL_SECONDS, showConnection);
  const stopListening = onSchemeChange(() => view?.redraw());
  return () => { stopPolling(); stopListening(); controller.abort(); view?.remove(); };
}

// A text that is too long for an address is left out of it.
const MAX_ADDRESS_CHARS = 20000;
const inAddress = value => value.length <= MAX_ADDRESS_CHARS ? value : '';

function describe(opened, maps) {
  const [{queries, layers, heads}] = maps;
  const weights = opened.step === null ? 'best weights' : `checkpoint of step ${formatCount(opened.step)}`;
  const output = opened.output ? ` Output: ${opened.output.slice(0, 200)}` : '';
  const count = (number, noun) => `${formatCount(number)} ${noun}${number === 1 ? '' : 's'}`;
  return `${count(queries.length, 'token')}, ${count(layers, 'layer')} of ${count(heads, 'head')}, ${weights}.${output}`;
}
