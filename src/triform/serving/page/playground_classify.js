// Classify a text: the probability of every label, and tokens coloured by their attribution.

import {postJson} from './api.js';
import {fillBars, showAttributions} from './components.js';
import {create, createNotices} from './dom.js';
import {attentionLink, createTextForm} from './playground_form.js';
import {showError, withButton} from './run_select.js';

export function createPanel(area, run, text) {
  let redraw = () => {}, controller = new AbortController();
  const results = create('div', {class: 'results'});
  const form = createTextForm({
    run, title: 'Text', action: 'Classify', text, submit: () => withButton(form.button, form.errors, classify),
  });
  area.append(form.node, form.errors, results);

  async function classify() {
    controller.abort();
    controller = new AbortController();
    const {signal} = controller, body = {model: run.id, text: form.text.value};
    const labels = await postJson('predict', {model: run.id, inputs: form.text.value, truncate: true}, {signal});
    const bars = create('ol', {class: 'bars', id: 'label-bars', 'aria-label': 'Probabilities'});
    fillBars(bars, labels.map(({label, score}) => [label, score]));
    const explained = create('div');
    const select = create('select', {id: 'explained-label', change: () => explain()},
      ...labels.map(({label}) => create('option', {value: label}, label)));
    results.replaceChildren(
      create('section', {class: 'card panel'}, create('h2', {}, 'Prediction'),
        create('p', {id: 'predicted-label', class: 'answer', dir: 'auto'}, labels[0].label), bars),
      create('section', {class: 'card panel'}, create('h2', {}, 'Token attributions'),
        create('div', {class: 'controls'}, create('label', {}, 'Label ', select)), explained,
        attentionLink(run, {text: body.text})));
    const explain = () => showExplanation(explained, {...body, label: select.value}, signal)
      .then(draw => { redraw = draw ?? redraw; })
      .catch(error => {
        if (error.name === 'AbortError') return;
        if (error.status === undefined) throw error;
        showError(explained, error);
      });
    explained.append(create('p', {class: 'small', role: 'status'}, 'The attributions are computed with many passes of the model.'));
    await explain();
  }
  return {redraw: () => redraw(), remove: () => controller.abort()};
}

async function showExplanation(area, request, signal) {
  const answer = await postJson('api/attribution', request, {signal});
  const nodes = {
    select: create('select', {id: 'attribution-method'}),
    tokens: create('div', {class: 'tokens', id: 'attribution-tokens', role: 'group', 'aria-label': 'Tokens, coloured by attribution'}),
    readout: create('b', {id: 'attribution-readout', 'aria-live': 'polite'}),
    sum: create('span', {id: 'attribution-sum'}),
  };
  const key = create('p', {class: 'key'}, create('span', {class: 'swatch'}), 'raises the logit ',
    create('span', {class: 'swatch down'}), 'lowers it');
  area.replaceChildren(...[
    createNotices('Notes', answer.notes),
    create('div', {class: 'controls'}, create('label', {}, 'Method ', nodes.select), key),
    nodes.tokens, create('p', {class: 'readout-line'}, nodes.readout, nodes.sum),
  ].filter(Boolean));
  return showAttributions(nodes, answer.attributions.map(({tokens, ...rest}) => ({...rest, pieces: tokens})));
}
