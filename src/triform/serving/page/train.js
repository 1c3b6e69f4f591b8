// The tab Train.

import {create, createEmptyNote} from './dom.js';

export function render(container) {
  container.append(create('h1', {}, 'Train'), createEmptyNote('This tab is empty.'));
}
