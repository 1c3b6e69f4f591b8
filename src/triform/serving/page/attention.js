// The tab Attention.

import {create, createEmptyNote} from './dom.js';

export function render(container) {
  container.append(create('h1', {}, 'Attention'), createEmptyNote('This tab is empty.'));
}
