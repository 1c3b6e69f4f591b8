// The tab Runs.

import {create, createEmptyNote} from './dom.js';

export function render(container) {
  container.append(create('h1', {}, 'Runs'), createEmptyNote('This tab is empty.'));
}
