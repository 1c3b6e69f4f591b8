// The search of the site runs in a worker. A browser refuses to start one from a page that was opened as a file, so that
// page runs the script of the worker in a hidden frame, which has the same methods.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentDocument;
      inside.open();
      inside.write(`<!doctype html><script>
        postMessage = (data) => parent.postMessage(data, "*");
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, failed) => {
          const script = Object.assign(document.createElement("script"), { src: url, onload: done, onerror: failed });
          document.head.append(script);
        })), Promise.resolve());
      <\/script><script src="${url}"><\/script>`);
      inside.close();
      this.loaded = new Promise((done) => (this.frame.contentWindow.onload = done));
      addEventListener("message", (event) => {
        if (event.source !== this.frame.contentWindow) return;
        const message = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      });
    }
    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
