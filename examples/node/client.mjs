// A client of `kaas serve`, as docs/protocol.md says: invokes what is registered there, asks questions, survives breaks.

import { randomBytes } from "node:crypto"
import { readFileSync } from "node:fs"
import { decode, encode } from "@msgpack/msgpack"
import { Dealer } from "zeromq"

const VERSION = 1

// A client's file, as `kaas keys new` writes it: of TOML it has a name and its text in each line.
export function readKeys(path) {
  const lines = readFileSync(path, "utf8").matchAll(/^(\w+) = ['"](.*)['"]$/gm)
  const { server_key, public_key, secret_key } = Object.fromEntries([...lines].map(([, name, text]) => [name, text]))
  return { server: server_key, public: public_key, secret: secret_key }
}

export class KaasError extends Error {
  constructor({ error, message, fields = {}, retry_s = null }) {
    super(message)
    Object.assign(this, { name: error, fields, retryS: retry_s })
  }
}

export class Client {
  #open = new Map() // number -> the question, until its answer is there
  #waiting = [] // invocations for which there is no credit yet
  #received = []
  #sent = Promise.resolve() // a socket takes one message at a time
  #invoked = 0
  #next = 1
  #session = randomBytes(16).toString("hex")
  #limits = null // until the first welcome, and again after each break
  #broken = null // why there is no connection and will be none
  #patience = null // a timer, while there is no connection
  #reason = "no server is there"

  // patience: milliseconds for which a server is looked for, at first and after each break.
  constructor(address, keys, patience = 60000) {
    this.socket = new Dealer({ immediate: true, linger: 1000, heartbeatInterval: 5000, sendHighWaterMark: 10000 })
    if (keys) {
      this.socket.curveServerKey = keys.server
      this.socket.curvePublicKey = keys.public
      this.socket.curveSecretKey = keys.secret
    }
    this.socket.events.on("handshake", () => this.#send({ op: "hello", version: VERSION, session: this.#session }))
    const lost = (reason) => {
      this.#limits = null
      this.#reason = reason
      this.#patience ??= setTimeout(() => this.#unreachable(address, this.#reason), patience)
    }
    const hangsUp = "the server hangs up: it may have another key, or be none of KaaS"
    this.socket.events.on("disconnect", () => lost(this.#limits ? "the connection broke" : hangsUp))
    this.socket.events.on("handshake:error:auth", () => this.#unreachable(address, "the server does not take this key"))
    lost("no server is there")
    this.socket.connect(address)
    this.finished = this.#receive()
  }

  async close() {
    this.#broken ??= { error: "NotInitialized", message: "this client is closed" }
    clearTimeout(this.#patience)
    if (this.#limits) await this.#sent
    this.socket.close()
  }

  // inputs: typed arrays, by name. Gives the outputs' bytes, by name.
  async invoke(name, inputs = {}, options = {}) {
    const frames = Object.values(inputs).map((x) => new Uint8Array(x.buffer, x.byteOffset, x.byteLength))
    const places = Object.fromEntries(Object.keys(inputs).map((input, index) => [input, { frame: index + 1 }]))
    const key = randomBytes(16).toString("hex") // what is sent again to the next life of the server is the same request
    const header = { op: "invoke", function: name, inputs: places, key, ...options }
    const [answer, outputs] = await this.ask(header, frames)
    return Object.fromEntries((answer.outputs ?? []).map((output, index) => [output, outputs[index]]))
  }

  // Gives [the answer's header, its frames], or throws a KaasError.
  ask(header, frames = []) {
    return new Promise((resolve, reject) => {
      if (this.#broken) return reject(new KaasError(this.#broken))
      const question = { header: { ...header, number: this.#next++ }, frames, resolve, reject }
      this.#waiting.push(question)
      this.#advance()
    })
  }

  #advance() { // what there is credit for goes
    while (this.#limits && this.#waiting.length) {
      const invokes = this.#waiting[0].header.op === "invoke"
      if (invokes && this.#invoked === this.#limits.requests) return
      const question = this.#waiting.shift()
      this.#invoked += invokes
      this.#open.set(question.header.number, question)
      this.#send(question.header, question.frames)
    }
  }

  #send(header, frames = []) {
    this.#sent = this.#sent.then(() => this.socket.send([encode(header), ...frames])).catch(() => {}) // closed
  }

  async #receive() {
    for await (const [head, ...frames] of this.socket) {
      const answer = decode(head)
      if (answer.op === "welcome") {
        const again = this.#limits ? [] : this.#open.values() // after a break, as the same requests
        this.#limits = answer.limits
        clearTimeout(this.#patience)
        this.#patience = null
        for (const { header, frames } of again) this.#send(header, frames)
        this.#advance()
      } else if (answer.op === "goodbye" || answer.error === "UnknownSession") continue // it is asked again after hello
      else if (this.#open.has(answer.number)) this.#answered(answer, frames)
      else if (answer.number === 0) this.#refused(answer)
      else this.#send({ op: "received", numbers: [answer.number] }) // it came before, and the break ate that
    }
  }

  #unreachable(address, reason) {
    this.#refused({ error: "Unreachable", message: `the server at ${address} cannot be reached: ${reason}` })
  }

  #refused(answer) { // not a question but this client itself
    if (this.#broken) return
    this.#broken = answer
    for (const { reject } of [...this.#open.values(), ...this.#waiting]) reject(new KaasError(answer))
    this.close()
  }

  #answered(answer, frames) {
    const { header, resolve, reject } = this.#open.get(answer.number)
    this.#open.delete(answer.number)
    if (header.op === "invoke") this.#received.push(answer.number)
    if (this.#received.length >= this.#limits?.requests / 2 || this.#open.size === 0) {
      if (this.#received.length) this.#send({ op: "received", numbers: this.#received })
      this.#invoked -= this.#received.length
      this.#received = []
      this.#advance()
    }
    answer.op === "failure" ? reject(new KaasError(answer)) : resolve([answer, frames])
  }
}
