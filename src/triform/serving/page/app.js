// The frame of the page: navigation by the part of the address after #, one module for each tab.
// A tab's module exports `render(container, params)`, which may be async and returns a function that cleans up.
// `params.path` is the rest of the address after the tab's name, decoded; `params.query` are its URLSearchParams.

import {onMissingToken, setToken, takeTokenFromAddress} from './api.js';
import {create, createErrorNotice, openDialog} from './dom.js';

const TABS = {
  runs: {title: 'Runs', load: () => import('./runs.js')},
  run: {title: 'Run', nav: 'runs', load: () => import('./run.js')},
  compare: {title: 'Compare', load: () => import('./compare.js')},
  playground: {title: 'Playground', load: () => import('./playground.js')},
  attention: {title: 'Attention', load: () => import('./attention.js')},
  train: {title: 'Train', load: () => import('./train.js')},
};
const view = document.getElementById('view');
let cleanUp = () => {};
let visit = 0;

function parseAddress() {
  const [address, query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  const [name, ...rest] = address.split('/');
  const path = rest.map(part => { try { return decodeURIComponent(part); } catch { return part; } }).join('/');
  return {name: name || 'runs', path, query: new URLSearchParams(query)};
}

async function show({focus = true} = {}) {
  const current = ++visit;
  const {name, path, query} = parseAddress();
  const tab = TABS[name];
  cleanUp();
  cleanUp = () => {};
  const container = create('div', {class: `tab tab-${name}`});
  view.replaceChildren(container);
  document.title = `${path || tab?.title || 'Not found'} · Triform studio`;
  for (const link of document.querySelectorAll('#tabs a')) {
    const isCurrent = link.hash === `#/${tab?.nav ?? name}`;
    isCurrent ? link.setAttribute('aria-current', 'page') : link.removeAttribute('aria-current');
  }
  if (focus) {
    view.focus({preventScroll: true});
    scrollTo(0, 0);
  }
  if (!tab) {
    container.append(create('h1', {}, 'Not found'), create('p', {}, 'There is no such tab. Choose one above.'));
    return;
  }
  try {
    const module = await tab.load();
    if (current !== visit) return;
    const finish = await module.render(container, {path, query});
    if (current === visit) cleanUp = finish ?? cleanUp;
    else finish?.();
  } catch (error) {
    if (current !== visit || error.name === 'AbortError') return;
    container.append(createErrorNotice(error, () => show()));
    if (error.status === undefined) throw error;
  }
}

let isAsking = false;
onMissingToken(async () => {
  if (isAsking) return;
  isAsking = true;
  const input = create('input', {type: 'text', autocomplete: 'off', spellcheck: 'false', required: true, id: 'token'});
  const accepted = await openDialog({
    title: 'This server requires a token',
    content: [create('label', {for: 'token'}, 'Token that the server was started with, or that it printed'), input],
    action: 'Continue',
  });
  isAsking = false;
  if (!accepted) return;
  setToken(input.value);
  show();
});

takeTokenFromAddress();
document.querySelector('.skip').addEventListener('click', event => {  // the address is that of the tab
  event.preventDefault();
  view.focus();
});
addEventListener('hashchange', () => show());
show({focus: false});
