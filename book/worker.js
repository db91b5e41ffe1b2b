// Browsers give pages that are opened as files no workers, and the search of the theme is one: here it is a frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const script = new URL(address, location.href)
      this.frame = Object.assign(document.createElement("iframe"), { hidden: true, srcdoc: "<!doctype html>" })
      this.loaded = new Promise((done, failed) => {
        this.frame.onload = () => {
          const inside = this.frame.contentWindow
          inside.postMessage = data => this.answer(data)
          inside.importScripts = (...addresses) => Promise.all(addresses.map(each => this.load(inside, new URL(each, script))))
          this.load(inside, script).then(done, failed)
        }
      })
      document.body.append(this.frame)
    }
    load(inside, address) {
      return new Promise((onload, onerror) => {
        const element = Object.assign(inside.document.createElement("script"), { src: address, onload, onerror })
        inside.document.head.append(element)
      })
    }
    answer(data) {
      const event = new MessageEvent("message", { data })
      this.dispatchEvent(event)
      this.onmessage?.(event)
    }
    postMessage(data) {
      this.loaded.then(() => {
        const inside = this.frame.contentWindow
        inside.dispatchEvent(new inside.MessageEvent("message", { data }))
      })
    }
    terminate() {
      this.frame.remove()
    }
  }
}
