// Asks a server for its state, or invokes one of its functions; prints JSON.
//
//     node call.mjs tcp://127.0.0.1:5555 health
//     node call.mjs tcp://127.0.0.1:5555 scale '{"x": [1, 2]}'
//
// With CURVE the last argument is the client's file of keys, as `kaas keys new` writes it.

import { Client, readKeys } from "./client.mjs"

const ARRAYS = {
  bool: Uint8Array, int8: Int8Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array, uint8: Uint8Array,
  uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array, float32: Float32Array, float64: Float64Array,
}
const QUERIES = ["status", "stats", "usage", "health"]

async function invoke(client, name, inputs) {
  const [{ entries }] = await client.ask({ op: "functions" })
  const known = entries.find((entry) => entry.name === name || entry.function === name)
  const array = (input, values) => ARRAYS[known.inputs[input][0]].from(values.flat(Infinity))
  const given = Object.entries(inputs).map(([input, values]) => [input, array(input, values)])
  const outputs = Object.entries(await client.invoke(name, Object.fromEntries(given)))
  const list = (output, data) => [...new ARRAYS[known.outputs[output][0]](Uint8Array.from(data).buffer)]
  return Object.fromEntries(outputs.map(([output, data]) => [output, list(output, data)]))
}

const [address, what, ...rest] = process.argv.slice(2)
const isQuery = QUERIES.includes(what)
const [inputs, keys] = isQuery ? [null, rest[0]] : [JSON.parse(rest[0]), rest[1]]
const client = new Client(address, keys && readKeys(keys), 10000)
try {
  const result = isQuery ? (await client.ask({ op: "ask", what }))[0].answer : await invoke(client, what, inputs)
  console.log(JSON.stringify(result))
} catch (error) {
  console.error(`${error.name}: ${error.message}`)
  process.exitCode = 1
}
await client.close()
