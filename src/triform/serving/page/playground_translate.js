// Translate a text: the best translation, alternatives, and which source tokens each target token reads.

import {postJson} from './api.js';
import {decodeMatrix} from './attention_source.js';
import {fillTokens, listen, number, paint, quoted} from './components.js';
import {create, createButton} from './dom.js';
import {rowOf, shade} from './heatmap.js';
import {attentionLink, createNumberField, createTextForm} from './playground_form.js';
import {showError, withButton} from './run_select.js';

export function createPanel(area, run, text) {
  let alignment = null, controller = new AbortController();
  const count = createNumberField('Alternatives', 3, {id: 'alternative-count', min: 0, max: 16});
  const results = create('div', {class: 'results'});
  const form = createTextForm({
    run, title: 'Text', action: 'Translate', text, fields: [create('div', {class: 'controls settings'}, count.node)],
    submit: () => withButton(form.button, form.errors, translate),
  });
  area.append(form.node, form.errors, results);

  async function translate() {
    controller.abort();
    controller = new AbortController();
    const {signal} = controller, source = form.text.value;
    const body = {q: source, source: 'auto', target: 'auto', alternatives: count.read() ?? 0, model: run.id};
    const answer = await postJson('translate', body, {signal});
    const translations = [answer.translatedText, ...(answer.alternatives ?? [])];
    const aligned = create('div', {id: 'alignment'}), chosen = create('p', {class: 'answer', id: 'translation', dir: 'auto'});
    const buttons = translations.map((translation, i) => createButton(translation || '(empty)', () => choose(i), {class: 'choice', dir: 'auto'}));
    const choose = async index => {
      buttons.forEach((button, i) => button.setAttribute('aria-pressed', i === index));
      chosen.textContent = translations[index];
      try {
        alignment = await showAlignment(aligned, run, source, translations[index], signal);
      } catch (error) {
        if (error.name === 'AbortError') return;
        if (error.status === undefined) throw error;
        showError(aligned, error);
      }
    };
    results.replaceChildren(
      create('section', {class: 'card panel'}, create('h2', {}, 'Translation'), chosen,
        translations.length > 1 && create('p', {class: 'small'}, 'Translations, the best first'),
        translations.length > 1 && create('ol', {class: 'choices', id: 'translations'}, ...buttons.map(button => create('li', {}, button)))),
      create('section', {class: 'card panel'}, create('h2', {}, 'Alignment'), aligned));
    await choose(0);
  }
  return {redraw: () => alignment?.(), remove: () => controller.abort()};
}

// Show which tokens of the source each token of the translation reads. It returns a function that draws the colours again.
async function showAlignment(area, run, text, target, signal) {
  const request = {model: run.id, text, target, part: 'cross', head: 'average', summary: false};
  const opened = await postJson('api/attention', {...request, weights: false}, {signal});
  const {queries, keys, n_layers: layers} = opened.parts.find(part => part.name === 'cross');
  const select = create('select', {id: 'alignment-layer'},
    ...Array.from({length: layers}, (_, i) => create('option', {value: i}, `layer ${i + 1}`)));
  const pane = name => create('div', {class: 'tokens', role: 'group', 'aria-label': `${name} tokens`, dir: 'auto', id: `${name}-tokens`});
  const panes = {target: pane('target'), source: pane('source')};
  const readout = create('b', {id: 'alignment-readout', 'aria-live': 'polite'});
  area.replaceChildren(
    create('div', {class: 'controls'}, create('label', {}, 'Cross-attention of ', select, ', average of heads')),
    create('h3', {}, 'Translation'), panes.target, create('h3', {}, 'Text'), panes.source,
    create('p', {class: 'readout-line'}, readout), attentionLink(run, {text, target}));
  const nodes = {target: fillTokens(panes.target, queries, 'target'), source: fillTokens(panes.source, keys, 'source')};
  let matrix, current = ['target', 0];
  const draw = () => {
    const [side, index] = current, weights = side === 'target' ? [...rowOf(matrix, index)]
      : Array.from({length: matrix.rows}, (_, query) => matrix.values[query * matrix.columns + index]);
    const other = side === 'target' ? 'source' : 'target', pieces = {target: queries, source: keys};
    const best = weights.indexOf(Math.max(...weights));
    nodes[side].forEach((node, i) => { paint(node, null); node.classList.toggle('active', i === index); });
    nodes[other].forEach((node, i) => {
      paint(node, side === 'target' ? shade(matrix, index, i) : shade(matrix, i, index));
      node.classList.toggle('active', i === best);
    });
    readout.textContent = side === 'target'
      ? `${quoted(queries[index], index)} → ${quoted(keys[best], best)}: ${number(weights[best])}`
      : `${quoted(keys[index], index)} is read most by ${quoted(pieces[other][best], best)}: ${number(weights[best])}`;
  };
  const look = side => index => { current = [side, index]; draw(); };
  for (const side of ['target', 'source']) listen(panes[side], look(side), look(side), () => {});
  const load = async () => {
    const answer = await postJson('api/attention', {...request, layer: +select.value}, {signal});
    matrix = decodeMatrix(answer.weights);
    draw();
  };
  select.value = layers - 1;
  select.addEventListener('change', () => load().catch(error => {
    if (error.status === undefined) throw error;
    showError(area, error);
  }));
  await load();
  return draw;
}
