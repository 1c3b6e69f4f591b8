// The form with a text that all tasks of the playground have.

import {create} from './dom.js';
import {createExampleButton} from './run_select.js';

// Return {node, text, button, errors}. Ctrl+Enter submits the form too.
export function createTextForm({run, title, action, text, submit, fields = [], buttons = []}) {
  const area = create('textarea', {id: 'playground-text', rows: 4, dir: 'auto', placeholder: 'Type or paste a text.'});
  area.value = text;
  const button = create('button', {type: 'submit', class: 'primary'}, action);
  const example = createExampleButton(() => run, value => { area.value = value; });
  const node = create('form', {class: 'card panel', submit: event => { event.preventDefault(); submit(); }},
    create('label', {for: 'playground-text'}, title), area, ...fields,
    create('div', {class: 'buttons'}, button, ...buttons, example));
  area.addEventListener('keydown', event => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey) && !button.disabled) node.requestSubmit();
  });
  return {node, text: area, button, errors: create('div')};
}

// A labelled field for a number. `read()` gives the number, or undefined if the field is empty.
export function createNumberField(title, value, {id, min, max, step = 1}) {
  const input = create('input', {type: 'number', id, min, max, step, class: 'number'});
  input.value = value;
  return {node: create('label', {}, `${title} `, input), read: () => input.value === '' ? undefined : Number(input.value)};
}

// A link to the tab Attention with the same run and text.
export function attentionLink(run, values) {
  const query = new URLSearchParams({run: run.id});
  for (const [name, value] of Object.entries(values)) if (value) query.set(name, value);
  return create('p', {class: 'more'}, create('a', {href: `#/attention?${query}`}, 'Look at its attention'));
}
