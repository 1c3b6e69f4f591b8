// The tab Run.

import {create, createEmptyNote} from './dom.js';

export function render(container) {
  container.append(create('h1', {}, 'Run'), createEmptyNote('This tab is empty.'));
}
