// The tab Playground: try a run. Its task decides what is shown.

import {readRamps} from './components.js';
import {create} from './dom.js';
import {createRunSelect, onSchemeChange} from './run_select.js';

const PANELS = {
  classify: () => import('./playground_classify.js'),
  generate: () => import('./playground_generate.js'),
  translate: () => import('./playground_translate.js'),
};

export async function render(container, {query}) {
  container.append(create('h1', {}, 'Playground'));
  const choice = await createRunSelect(container, query.get('run'));
  if (!choice) return undefined;
  const area = create('div');
  container.append(create('div', {class: 'controls'}, choice.label), area);
  let panel = null, visit = 0;
  const show = async (run, text = '') => {
    const current = ++visit;
    panel?.remove();
    panel = null;
    area.replaceChildren();
    readRamps();
    const {createPanel} = await PANELS[run.task]();
    if (current !== visit) return;
    panel = createPanel(area, run, text);  // {redraw, remove}
  };
  let shown = choice.current();
  choice.onChange(run => {  // the text stays for another run of the same task
    const text = document.getElementById('playground-text')?.value ?? '';
    show(run, run.task === shown.task ? text : '');
    shown = run;
  });
  const stopListening = onSchemeChange(() => { readRamps(); panel?.redraw(); });
  await show(shown, query.get('text') ?? '');
  return () => { visit++; stopListening(); panel?.remove(); };
}
