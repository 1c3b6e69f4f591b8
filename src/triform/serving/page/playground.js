// The tab Playground.

import {create, createEmptyNote} from './dom.js';

export function render(container) {
  container.append(create('h1', {}, 'Playground'), createEmptyNote('This tab is empty.'));
}
