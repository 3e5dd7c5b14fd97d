// On pages that are opened as files, browsers refuse workers. The search then runs in a hidden frame.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inner = (this.inner = frame.contentWindow)
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      this.ready = new Promise((resolve) => {
        const script = inner.document.createElement("script")
        script.src = url
        script.onload = resolve
        inner.document.body.append(script)
      })
    }
    async postMessage(data) {
      await this.ready
      this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }))
    }
  }
