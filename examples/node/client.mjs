// A client of `kaas serve` by docs/protocol.md: it invokes registered functions, asks for states, and reconnects.

import { randomBytes } from "node:crypto"
import { readFileSync } from "node:fs"
import { decode, encode } from "@msgpack/msgpack"
import { Dealer } from "zeromq"

const VERSION = 1

// A client's file, as `kaas keys new` writes it: TOML with a name and a text in each line.
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
  #open = new Map() // number -> the pending call, until its reply arrives
  #waiting = [] // calls that wait for credit or for a connection
  #received = [] // numbers of replies that the server does not know to have arrived
  #sent = Promise.resolve() // a socket takes one message at a time
  #invoked = 0
  #next = 1
  #session = randomBytes(16).toString("hex")
  #limits = null // null before the first welcome, and after each break of the connection until the next
  #failure = null // the error that ended this client
  #timer = null // runs while there is no connection
  #reason = "no server is there"

  // timeoutMs: milliseconds to wait for a server, at first and after each break of the connection.
  constructor(address, keys, timeoutMs = 60000) {
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
      this.#timer ??= setTimeout(() => this.#unreachable(address, this.#reason), timeoutMs)
    }
    const hangsUp = "the server hangs up: it may have another key, or be none of KaaS"
    this.socket.events.on("disconnect", () => lost(this.#limits ? "the connection broke" : hangsUp))
    this.socket.events.on("handshake:error:auth", () => this.#unreachable(address, "the server does not take this key"))
    lost("no server is there")
    this.socket.connect(address)
    this.finished = this.#receive()
  }

  async close() {
    this.#failure ??= { error: "NotInitialized", message: "this client is closed" }
    clearTimeout(this.#timer)
    if (this.#limits) await this.#sent
    this.socket.close()
  }

  // inputs: typed arrays, by name. Returns the outputs' bytes, by name.
  async invoke(name, inputs = {}, options = {}) {
    const frames = Object.values(inputs).map((x) => new Uint8Array(x.buffer, x.byteOffset, x.byteLength))
    const places = Object.fromEntries(Object.keys(inputs).map((input, index) => [input, { frame: index + 1 }]))
    const key = randomBytes(16).toString("hex") // a restarted server knows the request by its key
    const header = { op: "invoke", function: name, inputs: places, key, ...options }
    const [reply, outputs] = await this.ask(header, frames)
    return Object.fromEntries((reply.outputs ?? []).map((output, index) => [output, outputs[index]]))
  }

  // Returns [the reply's header, its frames], or throws a KaasError.
  ask(header, frames = []) {
    return new Promise((resolve, reject) => {
      if (this.#failure) return reject(new KaasError(this.#failure))
      const call = { header: { ...header, number: this.#next++ }, frames, resolve, reject }
      this.#waiting.push(call)
      this.#advance()
    })
  }

  #advance() { // sends the waiting calls that have credit
    while (this.#limits && this.#waiting.length) {
      const invokes = this.#waiting[0].header.op === "invoke"
      if (invokes && this.#invoked === this.#limits.requests) return
      const call = this.#waiting.shift()
      this.#invoked += invokes
      this.#open.set(call.header.number, call)
      this.#send(call.header, call.frames)
    }
  }

  #send(header, frames = []) {
    this.#sent = this.#sent.then(() => this.socket.send([encode(header), ...frames])).catch(() => {}) // the socket is closed
  }

  async #receive() {
    for await (const [head, ...frames] of this.socket) {
      const reply = decode(head)
      if (reply.op === "welcome") {
        const again = this.#limits ? [] : this.#open.values() // after a break the pending calls are sent again
        this.#limits = reply.limits
        clearTimeout(this.#timer)
        this.#timer = null
        for (const { header, frames } of again) this.#send(header, frames)
        this.#advance()
      } else if (reply.op === "goodbye" || reply.error === "UnknownSession") continue // sent again after hello
      else if (this.#open.has(reply.number)) this.#settle(reply, frames)
      else if (reply.number === 0) this.#fail(reply)
      else this.#send({ op: "received", numbers: [reply.number] }) // a second reply: the break lost the first "received"
    }
  }

  #unreachable(address, reason) {
    this.#fail({ error: "Unreachable", message: `the server at ${address} cannot be reached: ${reason}` })
  }

  #fail(reply) { // the server refuses this client, or cannot be reached
    if (this.#failure) return
    this.#failure = reply
    for (const { reject } of [...this.#open.values(), ...this.#waiting]) reject(new KaasError(reply))
    this.close()
  }

  #settle(reply, frames) {
    const { header, resolve, reject } = this.#open.get(reply.number)
    this.#open.delete(reply.number)
    if (header.op === "invoke") this.#received.push(reply.number)
    if (this.#received.length >= this.#limits?.requests / 2 || this.#open.size === 0) {
      if (this.#received.length) this.#send({ op: "received", numbers: this.#received })
      this.#invoked -= this.#received.length
      this.#received = []
      this.#advance()
    }
    reply.op === "failure" ? reject(new KaasError(reply)) : resolve([reply, frames])
  }
}
