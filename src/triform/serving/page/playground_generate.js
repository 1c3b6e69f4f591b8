// Continue a text token by token. Each token shows its alternatives, and each alternative can be continued from.

import {streamEvents} from './api.js';
import {addToken, clamp, colour, listen, make, number, paint, quoted, visible} from './components.js';
import {create, createButton} from './dom.js';
import {attentionLink, createNumberField, createTextForm} from './playground_form.js';
import {showError, withButton} from './run_select.js';

const N_ALTERNATIVES = 5;

export function createPanel(area, run, text) {
  // A token is {text, logprob, alternatives: [[text, logprob], ...]}; `start` is the prompt that the tokens continue.
  const state = {start: '', tokens: [], nodes: [], chosen: -1, reason: null};
  let controller = new AbortController();
  const settings = {
    temperature: createNumberField('Temperature', 0.8, {id: 'temperature', min: 0, max: 2, step: 0.05}),
    top_k: createNumberField('Top-k', 0, {id: 'top-k', min: 0, max: 1000000}),
    top_p: createNumberField('Top-p', 1, {id: 'top-p', min: 0.01, max: 1, step: 0.01}),
    seed: createNumberField('Seed', 0, {id: 'seed', min: 0, max: 4294967295}),
    max_tokens: createNumberField('Tokens', 60, {id: 'max-tokens', min: 1, max: 1000000}),
  };
  const stop = createButton('Stop', () => controller.abort(), {id: 'stop', disabled: true});
  const form = createTextForm({
    run, title: 'Prompt', action: 'Generate', text, buttons: [stop],
    fields: [create('div', {class: 'controls settings'}, ...Object.values(settings).map(field => field.node))],
    submit: () => { restart(form.text.value); generate(); },
  });
  const prompt = create('span', {class: 'prompt', dir: 'auto'});
  const tokens = create('div', {class: 'tokens generated', id: 'generated', role: 'group', 'aria-label': 'Generated tokens', dir: 'auto'});
  const status = create('p', {class: 'small', role: 'status', id: 'generation-status'});
  const more = createButton('Continue', () => generate(), {id: 'continue'});
  const link = create('div');
  const alternatives = create('div', {id: 'alternatives'});
  const results = create('div', {class: 'results split', hidden: true},
    create('section', {class: 'card panel'}, create('h2', {}, 'Continuation'), prompt, tokens, status,
      create('div', {class: 'buttons'}, more), link),
    create('section', {class: 'card panel'}, create('h2', {}, 'Alternatives'), alternatives,
      create('p', {class: 'small'}, 'Move to a token with the mouse or the arrow keys. Choose an alternative to continue from there. '
        + 'Less probable tokens are orange.')));
  area.append(form.node, form.errors, results);
  listen(tokens, showAlternatives, showAlternatives, () => {});

  function restart(start) {
    Object.assign(state, {start, tokens: [], nodes: [], chosen: -1, reason: null});
    tokens.replaceChildren();
    alternatives.replaceChildren();
    prompt.textContent = start;
    results.hidden = false;
  }
  function add(token) {
    const index = state.tokens.push(token) - 1, chance = Math.exp(token.logprob);
    const node = addToken(tokens, token.text, 'token', index, `, probability ${number(chance)}`);
    paint(node, colour(1 - clamp(chance, 1), 'down'));
    state.nodes.push(node);
    if (token.text.includes('\n')) tokens.append(create('br'));
  }
  const textOf = count => state.start + state.tokens.slice(0, count).map(token => token.text).join('');

  const generate = () => withButton(form.button, form.errors, async () => {
    controller.abort();
    controller = new AbortController();
    [stop.disabled, more.disabled, status.textContent] = [false, true, 'The model writes.'];
    const values = Object.fromEntries(Object.entries(settings).map(([name, field]) => [name, field.read()]));
    const body = {model: run.id, prompt: textOf(), stream: true, logprobs: N_ALTERNATIVES, ...values};
    let reason = 'stopped';
    try {
      for await (const {data} of streamEvents('v1/completions', {body, signal: controller.signal})) {
        if (data === '[DONE]') break;
        const {error, choices} = JSON.parse(data);
        if (error) { showError(form.errors, error); break; }
        for (const choice of choices) {
          readTokens(choice.logprobs).forEach(add);
          reason = choice.finish_reason ?? reason;
        }
      }
    } finally {
      [stop.disabled, more.disabled] = [true, reason === 'stop'];
      status.textContent = describe(state.tokens.length, reason);
      link.replaceChildren(attentionLink(run, {text: textOf()}));
    }
  });

  function showAlternatives(index) {
    state.chosen = index;
    const token = state.tokens[index];
    alternatives.replaceChildren(create('h3', {}, quoted(token.text, index)), create('p', {class: 'small'},
      `probability ${number(Math.exp(token.logprob))}`));
    const list = create('ol', {class: 'bars'});
    for (const [text, logprob] of token.alternatives) {
      const chance = Math.exp(logprob);
      const button = createButton('', () => continueFrom(index, text, logprob), {
        class: 'alternative', 'aria-pressed': String(text === token.text),
        'aria-label': `${visible(text)}, probability ${number(chance)}, continue from here`,
      });
      make('span', button, visible(text), 'name');
      make('span', make('span', button, '', 'track'), '', 'fill').style.width = `${100 * chance}%`;
      make('span', button, number(chance), 'num');
      list.append(create('li', {}, button));
    }
    alternatives.append(list);
  }
  function continueFrom(index, text, logprob) {
    const kept = state.tokens.slice(0, index), {alternatives: same} = state.tokens[index];
    restart(state.start);
    [...kept, {text, logprob, alternatives: same}].forEach(add);
    showAlternatives(index);
    generate();
  }
  return {
    redraw: () => state.nodes.forEach((node, i) => paint(node, colour(1 - clamp(Math.exp(state.tokens[i].logprob), 1), 'down'))),
    remove: () => controller.abort(),
  };
}

function readTokens(logprobs) {
  return (logprobs?.tokens ?? []).map((text, i) => ({
    text, logprob: logprobs.token_logprobs[i],
    alternatives: Object.entries(logprobs.top_logprobs?.[i] ?? {}).sort((a, b) => b[1] - a[1]),
  }));
}

const REASONS = {stop: 'The model ended the text.', length: 'The limit of tokens is reached.', stopped: 'Stopped.'};
const describe = (count, reason) => `${count} tokens. ${REASONS[reason]}`;
