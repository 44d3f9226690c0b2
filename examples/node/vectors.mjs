// Reads and writes the messages of tests/vectors, as a client in another language has to: node vectors.mjs FOLDER

import { deepStrictEqual, throws } from "node:assert"
import { readFileSync } from "node:fs"
import { join } from "node:path"
import { decode, encode } from "@msgpack/msgpack"

const folder = process.argv[2]
const vectors = (stem) => JSON.parse(readFileSync(join(folder, `${stem}.json`), "utf8"))
const bytes = (hex) => Uint8Array.from(Buffer.from(hex, "hex"))

function fields(value) { // a header of JSON, with its bytes
  if (Array.isArray(value)) return value.map(fields)
  if (value === null || typeof value !== "object") return value
  if (Object.keys(value).join() === "hex") return bytes(value.hex)
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, fields(item)]))
}

let checked = 0
for (const { name, header, hex } of [...vectors("from_client"), ...vectors("from_server")]) {
  deepStrictEqual(decode(bytes(hex)), fields(header), name)
  deepStrictEqual(decode(encode(fields(header))), fields(header), name)
  if (!name.includes("deadline")) deepStrictEqual(encode(fields(header)), bytes(hex), name) // 2.0 is 2 in JavaScript
  checked++
}
for (const { name, header, hex } of vectors("same")) {
  const read = decode(bytes(hex))
  for (const key of Object.keys(header)) if (key !== "inputs") deepStrictEqual(read[key], header[key], name)
  checked++
}
for (const name of ["nothing", "half a message", "more behind the map"]) {
  throws(() => decode(bytes(vectors("refused").find((vector) => vector.name === name).hex)), name)
  checked++
}
console.log(`${checked} vectors`)
