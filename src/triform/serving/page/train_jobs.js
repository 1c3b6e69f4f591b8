// The list of training jobs: state, log, stop and resume.

import {encodeId, getJson, poll, postJson} from './api.js';
import {create, createButton, createEmptyNote, createErrorNotice, createSection, createStatePill, formatTime, showConnection} from './dom.js';

const POLL_SECONDS = 1;

// Create the list: {node, waitForStart, remove}. `waitForStart(id)` resolves to the job when it no longer starts, or
// to null if the list was removed before.
export function createJobList() {
  const cards = new Map(), waiting = new Map();
  const list = create('div', {class: 'jobs'});
  const empty = createEmptyNote('No job was started yet. One job trains at a time.');
  const show = jobs => {
    empty.hidden = jobs.length > 0;
    for (const [id, card] of cards) if (!jobs.some(job => job.id === id)) { card.node.remove(); cards.delete(id); }
    jobs.forEach((job, i) => {
      if (!cards.has(job.id)) cards.set(job.id, createJobCard(job.id));
      const {node, update} = cards.get(job.id);
      update(job);
      if (list.children[i] !== node) list.insertBefore(node, list.children[i] ?? null);
      if (waiting.has(job.id) && job.state !== 'starting') {
        waiting.get(job.id)(job);
        waiting.delete(job.id);
      }
    });
  };
  const stopPolling = poll(async signal => show((await getJson('api/jobs', {signal})).jobs), POLL_SECONDS, showConnection);
  return {
    node: createSection('Jobs', empty, list),
    waitForStart: id => new Promise(resolve => waiting.set(id, resolve)),
    remove: () => { stopPolling(); waiting.forEach(resolve => resolve(null)); },
  };
}

// A card is updated in place, so that its log stays open and its buttons keep the focus.
function createJobCard(id) {
  const pill = create('span'), buttons = create('span', {class: 'buttons'}), message = create('div', {'aria-live': 'polite'});
  const name = create('span', {class: 'job-name'}), started = create('span', {class: 'hint'});
  const command = create('code'), log = create('pre', {tabindex: '0', 'aria-label': `Log of ${id}`});
  const node = create('article', {class: 'card panel job', dataset: {job: id}},
    create('h3', {}, name, ' ', pill, started, buttons), message,
    create('details', {}, create('summary', {}, 'Command and log'), create('p', {class: 'path'}, command), log));
  let last = '';
  const act = action => async event => {
    event.target.disabled = true;
    try {
      await postJson(`api/jobs/${encodeId(id)}/${action}`);
      last = '';
    } catch (error) {
      if (error.status === undefined) throw error;
      event.target.disabled = false;
      message.replaceChildren(createErrorNotice(error));
    }
  };
  const update = job => {
    command.textContent = job.command;
    if (log.textContent !== job.log) log.textContent = job.log;
    const current = JSON.stringify([job.state, job.error, job.has_run, job.can_stop, job.can_resume, job.started]);
    if (current === last) return;
    last = current;
    started.textContent = `${job.task}, started ${formatTime(job.started)}`;
    name.replaceChildren(job.has_run ? create('a', {href: `#/run/${encodeId(id)}`}, id) : id);
    pill.replaceChildren(createStatePill(job.state));
    buttons.replaceChildren(...[job.can_stop && createButton('Stop', act('stop')), job.can_resume && createButton('Resume', act('resume'))]
      .filter(Boolean));
    message.replaceChildren(...(job.error ? [createErrorNotice(new Error(job.error))] : []));
  };
  return {node, update};
}
