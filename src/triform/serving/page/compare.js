// The tab Compare.

import {create, createEmptyNote} from './dom.js';

export function render(container) {
  container.append(create('h1', {}, 'Compare'), createEmptyNote('This tab is empty.'));
}
